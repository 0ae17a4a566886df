// A scanned point as an accepted one: its row is complete but for its place in a batch, and its values are read from the row only
// if they are read.
import type { TelemetryDevice } from '../points/devices.ts';
import { leafHashInPlace, type HashText } from '../points/leaf-hashes.ts';
import { parsePayload, type PointValues } from '../points/payload.ts';
import { rowHeadBytes, rowOffsets, rowTailBytes, writeTime, writeUint32 } from '../points/point-row.ts';
import type { DeviceTime } from '../points/timestamp.ts';
import type { AcceptedPoint, EncodedRow } from '../points/validate.ts';
import type { ScannedPoint } from './scan.ts';

/** A tenant, as rows and leaf hashes contain it. */
export class RowTenant {
  readonly tenantId: string;
  readonly bytes: Buffer;

  constructor(tenantId: string) {
    this.tenantId = tenantId;
    this.bytes = Buffer.from(tenantId, 'latin1');
  }
}

/** Returns the accepted point of a scanned one. Completes its row in place, so that it must be called once for each. */
export function acceptScanned(scanned: ScannedPoint, tenant: RowTenant, device: TelemetryDevice): AcceptedPoint {
  const { deviceId, time, form, bytes, payloadStart, payloadEnd } = scanned;
  // The leaf's bytes before the payload are written to where the row's will be, which are more.
  const dataHash = leafHashInPlace(tenant.tenantId, scanned);
  const rowStart = payloadStart - rowHeadBytes(tenant.bytes.length);
  writeRow(bytes, rowStart, payloadEnd, { tenant, deviceId, time, dataHash });
  return new RowPoint(
    { tenantId: tenant.tenantId, device, time, dataHash, names: form.names },
    bytes,
    rowStart,
    payloadEnd,
  );
}

function writeRow(
  bytes: Buffer,
  start: number,
  payloadEnd: number,
  point: { tenant: RowTenant; deviceId: string; time: DeviceTime; dataHash: HashText },
): void {
  const tenant = point.tenant.bytes;
  bytes[start] = 0;
  bytes[start + 1] = 8;
  writeUint32(bytes, 8, start + rowOffsets.time - 4);
  writeTime(bytes, point.time.seconds, point.time.nanoseconds, start + rowOffsets.time);
  writeUint32(bytes, 16, start + rowOffsets.device - 4);
  writeUuid(bytes, point.deviceId, start + rowOffsets.device);
  writeUint32(bytes, 16, start + rowOffsets.batch - 4);
  writeUint32(bytes, 4, start + rowOffsets.leaf - 4);
  writeUint32(bytes, tenant.length, start + rowOffsets.tenant);
  let at = start + rowOffsets.tenant + 4;
  for (let index = 0; index < tenant.length; index += 1) bytes[at + index] = tenant[index]!;
  at += tenant.length;
  writeUint32(bytes, 32, at);
  at += 4 + bytes.write(point.dataHash, at + 4, 'latin1');
  writeUint32(bytes, payloadEnd - at - 4, at);
  writeUint32(bytes, 8, payloadEnd);
}

function writeUuid(bytes: Uint8Array, id: string, start: number): void {
  let at = start;
  for (let index = 0; index < 36; index += 2) {
    if (index === 8 || index === 13 || index === 18 || index === 23) index += 1;
    bytes[at] = (nibble(id.charCodeAt(index)) << 4) | nibble(id.charCodeAt(index + 1));
    at += 1;
  }
}

/** Returns the value of a hexadecimal digit in lower case. */
const nibble = (code: number): number => (code <= 0x39 ? code - 0x30 : code - 0x57);

/** An accepted point and its own row: one object, because a busy process holds thousands. */
class RowPoint implements AcceptedPoint, EncodedRow {
  readonly tenantId: string;
  readonly device: TelemetryDevice;
  readonly time: DeviceTime;
  readonly dataHash: HashText;
  readonly names: object;
  readonly bytes: Buffer;
  readonly rowStart: number;
  private readonly payloadEnd: number;
  private values: PointValues | undefined;

  constructor(
    point: Required<Pick<AcceptedPoint, 'tenantId' | 'device' | 'time' | 'dataHash' | 'names'>>,
    bytes: Buffer,
    rowStart: number,
    payloadEnd: number,
  ) {
    this.tenantId = point.tenantId;
    this.device = point.device;
    this.time = point.time;
    this.dataHash = point.dataHash;
    this.names = point.names;
    this.bytes = bytes;
    this.rowStart = rowStart;
    this.payloadEnd = payloadEnd;
    this.values = undefined;
  }

  get row(): EncodedRow {
    return this;
  }

  get rowEnd(): number {
    return this.payloadEnd + rowTailBytes;
  }

  get payload(): string {
    return this.bytes.toString('utf8', this.rowStart + rowHeadBytes(this.tenantId.length), this.payloadEnd);
  }

  get numericValues(): PointValues['numericValues'] {
    return this.parsed.numericValues;
  }

  get stringValues(): PointValues['stringValues'] {
    return this.parsed.stringValues;
  }

  private get parsed(): PointValues {
    return (this.values ??= parsePayload(this.payload));
  }
}

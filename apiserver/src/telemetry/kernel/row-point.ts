// A point of a body. Its canonical payload stands where its row will be, and once it is accepted, the row around it is complete but
// for its place in a batch. Its values are read from the row only if they are needed. One object, because a busy process holds
// thousands.
import type { TelemetryDevice } from '../points/devices.ts';
import { type HashText, leafHashInPlace } from '../points/leaf-hashes.ts';
import { parsePayload, type PointValues } from '../points/payload.ts';
import { rowHeadBytes, rowOffsets, rowTailBytes, writeTime, writeUint32 } from '../points/point-row.ts';
import type { DeviceTime } from '../points/timestamp.ts';
import type { AcceptedPoint, EncodedRow } from '../points/validate.ts';
import type { DeviceId } from './device-ids.ts';
import type { PointForm } from './point-form.ts';
import type { RowArea } from './row-areas.ts';

/** A tenant, as rows and leaf hashes contain it. */
export class RowTenant {
  readonly tenantId: string;
  readonly bytes: Buffer;

  constructor(tenantId: string) {
    this.tenantId = tenantId;
    this.bytes = Buffer.from(tenantId, 'latin1');
  }
}

/** A point of a body, and its row. */
export class RowPoint implements AcceptedPoint, EncodedRow, DeviceTime {
  readonly id: DeviceId;
  readonly form: PointForm;
  readonly seconds: number;
  readonly nanoseconds: number;
  readonly payloadStart: number;
  readonly payloadEnd: number;
  private readonly area: RowArea;
  private tenant: RowTenant | undefined = undefined;
  private known: TelemetryDevice | undefined = undefined;
  private hash: HashText = '';
  private values: PointValues | undefined = undefined;

  constructor(
    id: DeviceId,
    time: DeviceTime,
    form: PointForm,
    place: { readonly area: RowArea; readonly payloadStart: number; readonly payloadEnd: number },
  ) {
    this.id = id;
    this.form = form;
    this.seconds = time.seconds;
    this.nanoseconds = time.nanoseconds;
    this.area = place.area;
    this.payloadStart = place.payloadStart;
    this.payloadEnd = place.payloadEnd;
  }

  /** Completes the row. The point must be valid, and is an accepted one from then on. */
  accept(tenant: RowTenant, device: TelemetryDevice): AcceptedPoint {
    this.tenant = tenant;
    this.known = device;
    const { bytes, id, payloadStart, payloadEnd } = this;
    // The leaf's bytes before the payload are written to where the row's will be, which are more.
    this.hash = leafHashInPlace(tenant.tenantId, id.text, this.seconds, { bytes, payloadStart, payloadEnd });
    this.writeRow(bytes, this.rowStart, tenant.bytes);
    return this;
  }

  private writeRow(bytes: Buffer, start: number, tenant: Uint8Array): void {
    const { id, payloadEnd } = this;
    bytes[start] = 0;
    bytes[start + 1] = 8;
    writeUint32(bytes, 8, start + rowOffsets.time - 4);
    writeTime(bytes, this.seconds, this.nanoseconds, start + rowOffsets.time);
    writeUint32(bytes, 16, start + rowOffsets.device - 4);
    writeUint32(bytes, id.first, start + rowOffsets.device);
    writeUint32(bytes, id.second, start + rowOffsets.device + 4);
    writeUint32(bytes, id.third, start + rowOffsets.device + 8);
    writeUint32(bytes, id.fourth, start + rowOffsets.device + 12);
    writeUint32(bytes, 16, start + rowOffsets.batch - 4);
    writeUint32(bytes, 4, start + rowOffsets.leaf - 4);
    writeUint32(bytes, tenant.length, start + rowOffsets.tenant);
    let at = start + rowOffsets.tenant + 4;
    for (let index = 0; index < tenant.length; index += 1) bytes[at + index] = tenant[index]!;
    at += tenant.length;
    writeUint32(bytes, 32, at);
    at += 4 + bytes.write(this.hash, at + 4, 'latin1');
    writeUint32(bytes, payloadEnd - at - 4, at);
    writeUint32(bytes, 8, payloadEnd);
  }

  get tenantId(): string {
    return this.tenant!.tenantId;
  }

  get device(): TelemetryDevice {
    return this.known!;
  }

  get dataHash(): HashText {
    return this.hash;
  }

  get names(): object {
    return this.form.names;
  }

  get time(): DeviceTime {
    return this;
  }

  get row(): EncodedRow {
    return this;
  }

  /** Throws once the area has been released. */
  get bytes(): Buffer {
    return this.area.inUse;
  }

  get rowStart(): number {
    return this.payloadStart - rowHeadBytes(this.tenant!.bytes.length);
  }

  get rowEnd(): number {
    return this.payloadEnd + rowTailBytes;
  }

  get payload(): string {
    return this.bytes.toString('utf8', this.payloadStart, this.payloadEnd);
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

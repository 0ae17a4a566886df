// What latest values keep of an accepted point, which may be part of a much larger request.
import type { TelemetryDevice } from '../points/devices.ts';
import { parsePayload, type PointValues } from '../points/payload.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { DevicePoints } from './newest-points.ts';
import type { MeasuredPoint } from './snapshot-store.ts';

/** Returns what to keep of the points of devices in a flush. */
export function measuredPoints(devices: readonly DevicePoints[]): MeasuredPoint[] {
  const points: MeasuredPoint[] = [];
  for (const { newest, others } of devices) {
    if (others) for (const point of others) points.push(measuredPoint(point));
    points.push(measuredPoint(newest));
  }
  return points;
}

function measuredPoint(point: AcceptedPoint): MeasuredPoint {
  const { tenantId, device, time, payload, names } = point;
  if (names) return new PayloadPoint(tenantId, device, toNanoseconds(time), payload, names);
  const { numericValues, stringValues } = point;
  const { deviceId, key, memory } = device;
  return { tenantId, deviceId, key, memory, time: toNanoseconds(time), payload, numericValues, stringValues };
}

/** Reads the values from the payload when they are needed: mostly the next point replaces it unread. */
class PayloadPoint implements MeasuredPoint {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly key: string | undefined;
  readonly memory: TelemetryDevice['memory'];
  readonly time: bigint;
  readonly payload: string;
  readonly names: object;

  constructor(tenantId: string, device: TelemetryDevice, time: bigint, payload: string, names: object) {
    this.tenantId = tenantId;
    this.deviceId = device.deviceId;
    this.key = device.key;
    this.memory = device.memory;
    this.time = time;
    this.payload = payload;
    this.names = names;
  }

  get values(): PointValues {
    return parsePayload(this.payload);
  }

  get numericValues(): PointValues['numericValues'] {
    return this.values.numericValues;
  }

  get stringValues(): PointValues['stringValues'] {
    return this.values.stringValues;
  }
}

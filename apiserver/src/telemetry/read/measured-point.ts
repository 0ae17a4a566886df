// What latest values keep of an accepted point, which may be part of a much larger request.
import { parsePayload, type PointValues } from '../points/payload.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { MeasuredPoint } from './snapshot-store.ts';

/** Returns what to keep. */
export function measuredPoint(point: AcceptedPoint): MeasuredPoint {
  const { tenantId, device, time, payload, names } = point;
  if (names) return new PayloadPoint(tenantId, device.deviceId, toNanoseconds(time), payload, names);
  const { numericValues, stringValues } = point;
  return { tenantId, deviceId: device.deviceId, time: toNanoseconds(time), payload, numericValues, stringValues };
}

/** Reads the values from the payload when they are needed: mostly the next point replaces it unread. */
class PayloadPoint implements MeasuredPoint {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly time: bigint;
  readonly payload: string;
  readonly names: object;

  constructor(tenantId: string, deviceId: string, time: bigint, payload: string, names: object) {
    this.tenantId = tenantId;
    this.deviceId = deviceId;
    this.time = time;
    this.payload = payload;
    this.names = names;
  }

  get numericValues(): PointValues['numericValues'] {
    return parsePayload(this.payload).numericValues;
  }

  get stringValues(): PointValues['stringValues'] {
    return parsePayload(this.payload).stringValues;
  }
}

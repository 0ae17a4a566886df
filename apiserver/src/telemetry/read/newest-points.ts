// What has to be known of the points of a flush once they are committed: mostly only the newest point of each device.
import type { TelemetryDevice } from '../points/devices.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/** The points of a device in a flush. */
export interface DevicePoints {
  readonly tenantId: string;
  readonly device: TelemetryDevice;
  /** Identifies the device: `tenant/device`. */
  readonly key: string;
  count: number;
  /** Whether the device sent one of them now; otherwise they are results of updates, which are written when their turn comes. */
  isSent: boolean;
  newest: AcceptedPoint;
  /** Earlier ones that have values which `newest` may not replace, in order of arrival. */
  others: AcceptedPoint[] | undefined;
}

/**
 * Returns the points that devices sent, by device. Of two points with the same names in succession, the older one is left out:
 * nothing of it would remain when they are merged.
 */
export function newestOfDevices(points: readonly AcceptedPoint[]): DevicePoints[] {
  // The entry of a device in the directory is one object, unless the device changes meanwhile.
  const found = new Map<TelemetryDevice, DevicePoints>();
  const all: DevicePoints[] = [];
  let last: DevicePoints | undefined;
  for (const point of points) {
    if (point.isOwn === true) continue;
    const { device, tenantId } = point;
    const isSent = point.resultId === undefined;
    const of = last?.device === device ? last : found.get(device);
    if (of) {
      last = of;
      of.count += 1;
      of.isSent ||= isSent;
      const { newest } = of;
      if (point.names === undefined || point.names !== newest.names) (of.others ??= []).push(newest);
      else if (isBefore(point, newest)) continue;
      of.newest = point;
    } else {
      const key = device.key ?? `${tenantId}/${device.deviceId}`;
      last = { tenantId, device, key, count: 1, isSent, newest: point, others: undefined };
      found.set(device, last);
      all.push(last);
    }
  }
  return all;
}

function isBefore({ time: a }: AcceptedPoint, { time: b }: AcceptedPoint): boolean {
  return a.seconds < b.seconds || (a.seconds === b.seconds && a.nanoseconds < b.nanoseconds);
}

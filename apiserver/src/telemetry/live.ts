// The live feed: committed points go to whoever watches their device, in this process.
import { toHex } from './hashes.ts';
import { formatNanoseconds, toNanoseconds } from './timestamp.ts';
import type { AcceptedPoint } from './validate.ts';

/** Receives the committed points of a device that belong to one flush, oldest arrival first. */
export type LiveListener = (deviceId: string, points: readonly AcceptedPoint[]) => void;

/** Who watches which device. */
export class LiveHub {
  private readonly listeners = new Map<string, Set<LiveListener>>();

  /** Watches a device until the answered function is called. */
  subscribe(tenantId: string, deviceId: string, listener: LiveListener): () => void {
    const key = `${tenantId}/${deviceId}`;
    const watching = this.listeners.get(key) ?? new Set<LiveListener>();
    this.listeners.set(key, watching);
    watching.add(listener);
    return () => {
      watching.delete(listener);
      if (watching.size === 0 && this.listeners.get(key) === watching) this.listeners.delete(key);
    };
  }

  /** Whether anybody watches anything at all. */
  get isWatched(): boolean {
    return this.listeners.size > 0;
  }

  publish(tenantId: string, deviceId: string, points: readonly AcceptedPoint[]): void {
    const watching = this.listeners.get(`${tenantId}/${deviceId}`);
    if (watching) for (const listener of watching) listener(deviceId, points);
  }
}

/** A point as subscribers see it: enriched with what is known of its device (SPEC, What the service does, 3). */
export interface LivePoint {
  readonly device_id: string;
  readonly timestamp: string;
  readonly numeric_values: Readonly<Record<string, number>>;
  readonly string_values: Readonly<Record<string, string>>;
  readonly data_hash: string;
  readonly device_name: string;
  readonly device_type: string;
  readonly tags: Readonly<Record<string, string>>;
}

const serialised = new WeakMap<AcceptedPoint, string>();

/** The JSON of a point's LivePoint, made once however many subscribers it goes to. */
export function livePointJson(point: AcceptedPoint): string {
  let json = serialised.get(point);
  if (json === undefined) {
    const live: LivePoint = {
      device_id: point.device.deviceId,
      timestamp: formatNanoseconds(toNanoseconds(point.time)),
      numeric_values: point.numericValues,
      string_values: point.stringValues,
      data_hash: toHex(point.dataHash),
      device_name: point.device.name,
      device_type: point.device.type,
      tags: point.device.effectiveTags,
    };
    json = JSON.stringify(live);
    serialised.set(point, json);
  }
  return json;
}

/** Splits the points of a flush by device, in order. */
export function byDevice(points: readonly AcceptedPoint[]): AcceptedPoint[][] {
  const groups = new Map<string, AcceptedPoint[]>();
  for (const point of points) {
    const group = groups.get(point.device.deviceId);
    if (group) group.push(point);
    else groups.set(point.device.deviceId, [point]);
  }
  return [...groups.values()];
}

// The live feed: committed points go to whoever watches their device, in this process or elsewhere.
import { toHex } from '../points/hashes.ts';
import { formatNanoseconds, toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/** Receives the committed points of a device that belong to one flush, oldest arrival first: the JSON of a LivePoint each. */
export type LiveListener = (deviceId: string, points: readonly string[]) => void;

/** The other processes of the data plane (live-relay.ts); keys are `tenant/device`. */
export interface LiveElsewhere {
  /** Whether anything at all is watched elsewhere. */
  readonly isWanted: boolean;
  /** Whether the device may be watched elsewhere. */
  wants(key: string): boolean;
  send(key: string, points: readonly string[]): void;
  /** A device got its first listener here, or lost its last one. */
  changed(key: string, isWatched: boolean): void;
  /** Resolves when the others have been told of what is watched here, or after a moment. */
  settled(): Promise<void>;
}

/** Who watches which device. */
export class LiveHub {
  private readonly listeners = new Map<string, Set<LiveListener>>();
  private elsewhere: LiveElsewhere | undefined;

  /** Takes part in the feed of all processes. */
  join(elsewhere: LiveElsewhere): void {
    this.elsewhere = elsewhere;
  }

  /** Watches a device until the answered function is called. */
  subscribe(tenantId: string, deviceId: string, listener: LiveListener): () => void {
    const key = `${tenantId}/${deviceId}`;
    let watching = this.listeners.get(key);
    if (!watching) {
      watching = new Set<LiveListener>();
      this.listeners.set(key, watching);
      this.elsewhere?.changed(key, true);
    }
    watching.add(listener);
    const joined = watching;
    return () => {
      if (!joined.delete(listener) || joined.size > 0) return;
      this.listeners.delete(key);
      this.elsewhere?.changed(key, false);
    };
  }

  /** Resolves when every process that may commit points knows of the subscriptions made so far, or after a moment. */
  settled(): Promise<void> {
    return this.elsewhere?.settled() ?? Promise.resolve();
  }

  /** Whether anybody watches anything at all. */
  get isWatched(): boolean {
    return this.listeners.size > 0 || (this.elsewhere?.isWanted ?? false);
  }

  /** Points that this process has committed; they are serialised when somebody watches, and once. */
  publish(tenantId: string, deviceId: string, points: readonly AcceptedPoint[]): void {
    const key = `${tenantId}/${deviceId}`;
    const isWanted = this.elsewhere?.wants(key) ?? false;
    if (!isWanted && !this.listeners.has(key)) return;
    const texts = points.map(livePointJson);
    this.deliver(key, texts);
    if (isWanted) this.elsewhere!.send(key, texts);
  }

  /** Points that come from wherever: to the listeners of this process. */
  deliver(key: string, points: readonly string[]): void {
    const watching = this.listeners.get(key);
    if (!watching) return;
    const deviceId = key.slice(key.indexOf('/') + 1);
    for (const listener of watching) listener(deviceId, points);
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

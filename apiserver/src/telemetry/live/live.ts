// The live feed: delivers committed points to the subscribers of their device, in this process or elsewhere.
import { toHex } from '../points/leaf-hashes.ts';
import { formatNanoseconds, toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { type LiveListener, LiveTurns } from './live-turns.ts';

/** The other processes of the data plane (live-relay.ts); keys are `tenant/device`. */
export interface LiveElsewhere {
  /** Reports whether anything is watched elsewhere. */
  readonly isWanted: boolean;
  /** Reports whether the device may be watched elsewhere. */
  wants(key: string): boolean;
  send(key: string, points: readonly string[]): void;
  /** Called when a device gets its first listener here or loses its last one. */
  changed(key: string, isWatched: boolean): void;
  /** Resolves once the other processes know what is watched here, or after a short timeout. */
  settled(): Promise<void>;
}

/** Tracks subscriptions to devices. */
export class LiveHub {
  private readonly listeners = new Map<string, Set<LiveListener>>();
  private readonly turns = new LiveTurns();
  private elsewhere: LiveElsewhere | undefined;

  /** Connects this hub to the other processes. */
  join(elsewhere: LiveElsewhere): void {
    this.elsewhere = elsewhere;
  }

  /** Watches a device until the returned function is called. */
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

  /**
   * Resolves once every process that may commit points knows the subscriptions made so far, or after a short timeout.
   */
  settled(): Promise<void> {
    return this.elsewhere?.settled() ?? Promise.resolve();
  }

  /** Reports whether any device is watched. */
  get isWatched(): boolean {
    return this.listeners.size > 0 || (this.elsewhere?.isWanted ?? false);
  }

  /** Publishes points committed by this process. They are serialised only if watched, only once, and as there is room. */
  publish(tenantId: string, deviceId: string, points: readonly AcceptedPoint[], room = new LiveRoom()): void {
    const key = `${tenantId}/${deviceId}`;
    const isWanted = this.elsewhere?.wants(key) ?? false;
    if (!isWanted && !this.listeners.has(key)) return;
    const texts = room.textsOf(points);
    if (texts.length === 0) return;
    this.deliver(key, texts);
    if (isWanted) this.elsewhere!.send(key, texts);
  }

  /** Delivers points from any process to the listeners of this process. */
  deliver(key: string, points: readonly string[]): void {
    const watching = this.listeners.get(key);
    if (watching) this.turns.deliver(key, points, watching);
  }
}

/** A point as subscribers see it, enriched with what is known about its device. */
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

/** Characters of a device's points of a flush, and of a tenant's, after which no more are passed on. */
const mostCharacters = { ofDevice: 4 * 2 ** 20, ofTenant: 16 * 2 ** 20 };

/**
 * The room for the points of a tenant's devices in one flush: each point has all tags of its device, which may be a hundred times as
 * large as the point.
 */
export class LiveRoom {
  private characters = 0;

  /** Returns the newest of a device's points for which there is room, in order. */
  textsOf(points: readonly AcceptedPoint[]): string[] {
    const texts: string[] = [];
    let own = 0;
    for (let index = points.length - 1; index >= 0; index -= 1) {
      if (own >= mostCharacters.ofDevice || this.characters >= mostCharacters.ofTenant) break;
      const point = points[index]!;
      const isMade = serialised.has(point);
      const text = livePointJson(point);
      texts.push(text);
      own += text.length;
      if (!isMade) this.characters += text.length;
    }
    return texts.reverse();
  }
}

const serialised = new WeakMap<AcceptedPoint, string>();

/** Returns the JSON of a point's LivePoint, serialised once for all subscribers. */
function livePointJson(point: AcceptedPoint): string {
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

/** Groups the points of a flush by device, preserving order. */
export function byDevice(points: readonly AcceptedPoint[]): AcceptedPoint[][] {
  const groups = new Map<string, AcceptedPoint[]>();
  for (const point of points) {
    const group = groups.get(point.device.deviceId);
    if (group) group.push(point);
    else groups.set(point.device.deviceId, [point]);
  }
  return [...groups.values()];
}

// Merges the latest value of each key of a device by device time.
import type { PointValues } from '../points/payload.ts';

/** A value and the device time of its measurement, in nanoseconds since 1970. */
export interface TimedValue<T> {
  readonly value: T;
  readonly time: bigint;
}

/** A point's values, as objects and as JSON text, and its device time. */
export interface TimedPoint extends PointValues {
  readonly time: bigint;
  readonly payload: string;
  /** Points whose `names` are the same object have the same names. */
  readonly names?: object;
  /** The values, if they have to be parsed: both kinds at once. */
  readonly values?: PointValues;
}

/** The newest value of each key and the time of the newest point. */
export interface LatestValues {
  time: bigint;
  readonly numeric: Map<string, TimedValue<number>>;
  readonly text: Map<string, TimedValue<string>>;
}

/** The JSON form stored in telemetry_latest.document. */
export interface LatestDocument {
  readonly time: string;
  readonly numeric: Readonly<Record<string, readonly [number, string]>>;
  readonly string: Readonly<Record<string, readonly [string, string]>>;
}

/** Returns empty latest values. */
export const noLatestValues = (): LatestValues => ({ time: -1n, numeric: new Map(), text: new Map() });

/** Approximate bytes of a key with its value and time in memory, without their texts. */
const keyBytes = 150;

const textBytes = (value: unknown): number => (typeof value === 'string' ? value.length * 2 : 0);

/** What is stored of a device besides its newest point: some five thousand numbers. */
const maximumLatestBytes = 1024 * 1024;

/** What is held of a device in memory besides its newest point: more than is stored, because finding the oldest values takes long. */
const mostHeldBytes = 4 * maximumLatestBytes;

/**
 * Removes the oldest values if all take more than `bytes`: a device can send other keys with each point, and what is stored is read
 * and written as a whole. Returns the bytes of those that are left.
 */
export function removeOldest({ numeric, text }: LatestValues, bytes = maximumLatestBytes): number {
  const maps: readonly Map<string, TimedValue<unknown>>[] = [numeric, text];
  // Typed arrays: there may be tens of thousands, and this runs where points are committed.
  const times = new Float64Array(numeric.size + text.size);
  const sizes = new Float64Array(times.length);
  let at = 0;
  for (const values of maps)
    for (const [key, { value, time }] of values) {
      times[at] = Number(time);
      sizes[at] = keyBytes + textBytes(key) + textBytes(value);
      at += 1;
    }
  const total = sizes.reduce((sum, size) => sum + size, 0);
  if (total <= bytes) return total;
  const cut = cutOf(times, sizes, bytes);
  let left = bytesFrom(cut, times, sizes);
  at = 0;
  for (const values of maps)
    for (const key of values.keys()) {
      const time = times[at]!;
      const isSpare = time === cut && left > bytes;
      if (isSpare) left -= sizes[at]!;
      if (isSpare || time < cut) values.delete(key);
      at += 1;
    }
  return left;
}

/** Returns the least time after which all values fit. */
function cutOf(times: Float64Array, sizes: Float64Array, bytes: number): number {
  const sorted = times.toSorted();
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bytesFrom(sorted[middle]!, times, sizes, false) <= bytes) high = middle;
    else low = middle + 1;
  }
  return sorted[low]!;
}

/** Returns the bytes of the values from a time on, or after it. */
function bytesFrom(from: number, times: Float64Array, sizes: Float64Array, isIncluded = true): number {
  let bytes = 0;
  for (let index = 0; index < times.length; index += 1) {
    const time = times[index]!;
    if (time > from || (isIncluded && time === from)) bytes += sizes[index]!;
  }
  return bytes;
}

/** Returns by how many bytes the map has grown, approximately. */
function offer<T>(into: Map<string, TimedValue<T>>, key: string, value: T, time: bigint): number {
  const held = into.get(key);
  // Of two values with the same time, the later arrival wins.
  if (held && held.time > time) return 0;
  into.set(key, { value, time });
  return textBytes(value) + (held ? -textBytes(held.value) : keyBytes + textBytes(key));
}

/** Merges a point. Returns by how many bytes the values have grown, approximately. */
export function mergePoint(into: LatestValues, values: PointValues, time: bigint): number {
  let grown = 0;
  if (time > into.time) into.time = time;
  for (const [key, value] of Object.entries(values.numericValues)) grown += offer(into.numeric, key, value, time);
  for (const [key, value] of Object.entries(values.stringValues)) grown += offer(into.text, key, value, time);
  return grown;
}

/** Merges latest values that arrived later. Returns by how many bytes the values have grown, approximately. */
export function mergeLatest(into: LatestValues, later: LatestValues): number {
  let grown = 0;
  if (later.time > into.time) into.time = later.time;
  for (const [key, { value, time }] of later.numeric) grown += offer(into.numeric, key, value, time);
  for (const [key, { value, time }] of later.text) grown += offer(into.text, key, value, time);
  return grown;
}

/** Returns the values without those that a newer value of the other type has replaced, as when a number becomes text. */
export function withoutReplaced(latest: LatestValues): LatestValues {
  const current = <T>(values: Map<string, TimedValue<T>>, others: Map<string, TimedValue<unknown>>) =>
    new Map([...values].filter(([key, { time }]) => (others.get(key)?.time ?? -1n) <= time));
  return {
    time: latest.time,
    numeric: current(latest.numeric, latest.text),
    text: current(latest.text, latest.numeric),
  };
}

/** Parses a document. */
export function fromDocument(document: LatestDocument): LatestValues {
  const timed = <T>(values: Readonly<Record<string, readonly [T, string]>>) =>
    new Map(Object.entries(values).map(([key, [value, time]]) => [key, { value, time: BigInt(time) }]));
  return { time: BigInt(document.time), numeric: timed(document.numeric), text: timed(document.string) };
}

/** Returns the document as JSON text. */
export function toDocument(latest: LatestValues): string {
  const timed = <T>(values: Map<string, TimedValue<T>>) =>
    Object.fromEntries([...values].map(([key, { value, time }]) => [key, [value, String(time)]]));
  return JSON.stringify({ time: String(latest.time), numeric: timed(latest.numeric), string: timed(latest.text) });
}

/**
 * Merges points one after another. Keeps the newest point whole: while each next point is newer and has the same keys,
 * as in a device's regular reports, it replaces the previous one without looking at the values; an older one with the same keys
 * changes nothing.
 */
export class LatestBuilder {
  /** Values of other points than the newest; undefined: none. */
  private older: LatestValues | undefined;
  private olderBytes = 0;
  private newest: TimedPoint | undefined;

  /** Approximate bytes in memory. */
  get bytes(): number {
    return this.olderBytes + textBytes(this.newest?.payload);
  }

  /** The newest point, and the values of others, which are older unless another builder was put before this one. */
  get parts(): { readonly newest: TimedPoint | undefined; readonly older: LatestValues | undefined } {
    return { newest: this.newest, older: this.older };
  }

  /** Merges a point, which is kept and must not change. */
  add(point: TimedPoint): void {
    const { newest } = this;
    if (newest && point.time < newest.time) {
      if (point.names === undefined || point.names !== newest.names) this.addToOlder(point);
      return;
    }
    if (newest && !haveSameKeys(newest, point)) this.addToOlder(newest);
    this.newest = point;
  }

  /** Merges another builder, all of whose points arrived before those here. */
  addBefore(earlier: LatestBuilder): void {
    const { newest } = this;
    if (!newest) throw new RangeError('there is no point yet');
    const merged = earlier.older ?? noLatestValues();
    const isReplaced = earlier.newest && earlier.newest.time <= newest.time && haveSameKeys(earlier.newest, newest);
    if (!isReplaced && earlier.newest) mergePoint(merged, earlier.newest, earlier.newest.time);
    else if (!earlier.older) return;
    if (this.older) mergeLatest(merged, this.older);
    this.older = noLatestValues();
    this.olderBytes = mergeLatest(this.older, merged);
    this.shorten(this.older);
  }

  /** Merges all points so far into values that arrived before. */
  mergeInto(values: LatestValues): void {
    const { older, newest } = this;
    if (older) mergeLatest(values, older);
    if (newest) mergePoint(values, newest.values ?? newest, newest.time);
  }

  private addToOlder(point: TimedPoint): void {
    this.older ??= noLatestValues();
    this.olderBytes += mergePoint(this.older, point, point.time);
    this.shorten(this.older);
  }

  private shorten(older: LatestValues): void {
    if (this.olderBytes > mostHeldBytes) this.olderBytes = removeOldest(older);
  }
}

function haveSameKeys(a: TimedPoint, b: TimedPoint): boolean {
  if (a.names !== undefined && a.names === b.names) return true;
  return sameKeys(a.numericValues, b.numericValues) && sameKeys(a.stringValues, b.stringValues);
}

/** Reports whether two objects have the same keys in the same order. */
function sameKeys(a: object, b: object): boolean {
  const first = Object.keys(a);
  const second = Object.keys(b);
  if (first.length !== second.length) return false;
  for (let index = 0; index < first.length; index += 1) if (first[index] !== second[index]) return false;
  return true;
}

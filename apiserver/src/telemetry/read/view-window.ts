// What may be read of a device: everything, or the window of an entity view.
import type { PointValues } from '../points/payload.ts';
import { type PointCursor, type PointSource, readPoints } from './history.ts';
import { type LatestValues, mergePoint, noLatestValues, type TimedValue } from './latest-values.ts';

/** A part of a device's data. Times are nanoseconds since 1970; `end` is exclusive. */
export interface Window {
  readonly deviceId: string;
  readonly start: bigint;
  readonly end: bigint;
  /** Empty: all. */
  readonly keys: readonly string[];
}

/** Later than any point. */
export const endOfTime = 2n ** 63n - 1n;

/** Everything of a device. */
export const wholeOf = (deviceId: string): Window => ({ deviceId, start: 0n, end: endOfTime, keys: [] });

/** Returns the part of a window that a request covers, or undefined if it covers none. */
export function intersect(window: Window, asked: Omit<Window, 'deviceId'>): Window | undefined {
  const start = asked.start > window.start ? asked.start : window.start;
  const end = asked.end < window.end ? asked.end : window.end;
  const isLimited = window.keys.length > 0;
  const keys = isLimited && asked.keys.length > 0 ? asked.keys.filter((key) => window.keys.includes(key)) : undefined;
  // No keys would mean all of them.
  if (start >= end || keys?.length === 0) return undefined;
  return { deviceId: window.deviceId, start, end, keys: keys ?? (isLimited ? window.keys : asked.keys) };
}

/** Points read in search of values before a window's end: few at first, because most keys are in every point. */
const firstRead = 100;
const laterReads = 1000;
const maximumSearched = 10_000;
/** Bytes of points that are searched, more or less: each may have a mebibyte. */
const maximumSearchedBytes = 64 * 1024 * 1024;

/**
 * Returns the newest value of each key within a window, given the device's latest values. A value since the end of the
 * window hides the one to show, which is then searched among the newest points of the window, at most `searched` or some 64 MiB: a
 * key that has not been sent within so many is not shown.
 */
export async function latestWithin(
  source: PointSource,
  tenantId: string,
  window: Window,
  latest: LatestValues,
  searched = maximumSearched,
): Promise<LatestValues> {
  const shown = noLatestValues();
  const hidden = new Set<string>();
  const take = <T>(values: ReadonlyMap<string, TimedValue<T>>, into: Map<string, TimedValue<T>>): void => {
    for (const [key, value] of values) {
      if (value.time < window.start || (window.keys.length > 0 && !window.keys.includes(key))) continue;
      if (value.time >= window.end) hidden.add(key);
      else into.set(key, value);
    }
  };
  take(latest.numeric, shown.numeric);
  take(latest.text, shown.text);
  let after: PointCursor | undefined;
  let left = searched;
  let bytes = 0;
  while (hidden.size > 0 && left > 0 && bytes < maximumSearchedBytes) {
    const limit = Math.min(left, after ? laterReads : firstRead);
    // Of all keys: a filter would read on until it finds something, however far back that is.
    const { rows } = await readPoints(source, { tenantId, ...window, keys: [], descending: true, limit }, after);
    if (rows.length === 0) break;
    left -= rows.length;
    for (const { time, payload } of rows) {
      bytes += payload.length;
      const values = JSON.parse(payload) as {
        numeric_values: PointValues['numericValues'];
        string_values: PointValues['stringValues'];
      };
      const [numericValues, stringValues] = [hiddenOf(values.numeric_values), hiddenOf(values.string_values)];
      mergePoint(shown, { numericValues, stringValues }, time);
      for (const key of [...Object.keys(numericValues), ...Object.keys(stringValues)]) hidden.delete(key);
    }
    const last = rows.at(-1)!;
    after = { time: String(last.time), hash: last.dataHash.toString('hex') };
  }
  const times = [...shown.numeric.values(), ...shown.text.values()].map(({ time }) => time);
  shown.time = times.reduce((newest, time) => (time > newest ? time : newest), -1n);
  return shown;

  function hiddenOf<T>(values: Readonly<Record<string, T>>): Record<string, T> {
    return Object.fromEntries(Object.entries(values).filter(([key]) => hidden.has(key)));
  }
}

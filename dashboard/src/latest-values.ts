// The latest value of each key, from the API and from live points. Pure.
import type { LivePoint, Schema } from '@kellet/client';

/** The latest value of a key. */
export interface LatestValue {
  readonly value: number | string;
  readonly at: string;
}

/** The latest values by key. */
export type LatestValues = ReadonlyMap<string, LatestValue>;

/** Returns the values of a response of `telemetry/{device_id}/latest`. */
export function latestOf(response: Schema<'LatestTelemetry'>): LatestValues {
  const values = { ...response.string_values, ...response.numeric_values };
  return new Map(Object.entries(values).map(([key, value]) => [key, { value, at: response.updated[key] ?? '' }]));
}

/** The values of a point. */
type TimedValues = Pick<LivePoint, 'timestamp'> & Partial<Pick<LivePoint, 'numeric_values' | 'string_values'>>;

/** Returns the values with those of a live point that are not older. Points can arrive in any order. */
export function withPoint(values: LatestValues, point: TimedValues): LatestValues {
  const result = new Map(values);
  for (const [key, value] of Object.entries({ ...point.string_values, ...point.numeric_values })) {
    const known = result.get(key);
    if (!known || !(Date.parse(point.timestamp) < Date.parse(known.at))) {
      result.set(key, { value, at: point.timestamp });
    }
  }
  return result;
}

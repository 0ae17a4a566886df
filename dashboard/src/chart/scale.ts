// The geometry of line charts. Pure.

/** A measured value; `at` in milliseconds. */
export interface Sample {
  readonly at: number;
  readonly value: number;
}

/** A range of an axis. */
export interface Range {
  readonly from: number;
  readonly to: number;
}

/** The largest ring of live samples, and the most that a chart draws. */
export const maximumSamples = 600;

/** Returns the samples with a new one, in order of time and without the oldest beyond the maximum. */
export function withSample(samples: readonly Sample[], added: Sample): readonly Sample[] {
  const last = samples.at(-1);
  if (last && added.at === last.at) return [...samples.slice(0, -1), added];
  const all = last && added.at < last.at ? [...samples, added].sort((a, b) => a.at - b.at) : [...samples, added];
  return all.length > maximumSamples ? all.slice(-maximumSamples) : all;
}

/** Returns round values within a range, at most `maximum` of them, for the labels of an axis. */
export function ticks({ from, to }: Range, maximum: number): number[] {
  const span = to - from;
  if (!(span > 0) || !Number.isFinite(span)) return [from];
  const rough = span / maximum;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((size) => span / size <= maximum)!;
  const first = Math.ceil(from / step);
  // Multiples, not sums: the error of a sum would grow with each step.
  const result = Array.from({ length: Math.floor(to / step) - first + 1 }, (_, index) => (first + index) * step);
  return result.map((value) => Number(value.toPrecision(12)));
}

/** Returns the range of values, widened so that a constant line is in the middle and none touches the edge. */
export function valueRange(samples: readonly Sample[]): Range {
  let [low, high] = [Infinity, -Infinity];
  for (const { value } of samples) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return { from: 0, to: 1 };
  const margin = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.08;
  return { from: low - margin, to: high + margin };
}

/** Returns the position of a value within a range, as a part of `size`. */
export const position = (value: number, { from, to }: Range, size: number): number =>
  to === from ? size / 2 : ((value - from) / (to - from)) * size;

/**
 * Returns the `d` of an SVG path. A gap of more than `gap` milliseconds interrupts the line: the device was silent.
 */
export function linePath(
  samples: readonly Sample[],
  times: Range,
  values: Range,
  size: { readonly width: number; readonly height: number; readonly gap: number },
): string {
  let path = '';
  let previous = -Infinity;
  for (const { at, value } of samples) {
    const x = position(at, times, size.width).toFixed(1);
    const y = (size.height - position(value, values, size.height)).toFixed(1);
    path += `${at - previous > size.gap ? 'M' : 'L'}${x} ${y}`;
    previous = at;
  }
  return path;
}

/** Returns the sample nearest to a time, or undefined if there are none. */
export function nearest(samples: readonly Sample[], at: number): Sample | undefined {
  let best: Sample | undefined;
  for (const sample of samples) if (!best || Math.abs(sample.at - at) < Math.abs(best.at - at)) best = sample;
  return best;
}

/** The ranges of time to choose from, in seconds. */
export const historyRanges = [
  ['1 hour', 3600],
  ['6 hours', 6 * 3600],
  ['1 day', 86_400],
  ['7 days', 7 * 86_400],
  ['30 days', 30 * 86_400],
] as const;

/** Returns the width of buckets in seconds that gives at most 360 of them. */
export function bucketSeconds(rangeSeconds: number): number {
  const widths = [10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 86_400];
  return widths.find((width) => rangeSeconds / width <= 360) ?? 86_400;
}

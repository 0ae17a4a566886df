// Aggregates the values of points in intervals.
import { failedPrecondition } from '../../platform/errors.ts';

/** How the values of a bucket are aggregated. */
export type Aggregation = 'avg' | 'min' | 'max' | 'sum' | 'count' | 'last';

/** One bucket: its start and the aggregate of each key. */
export interface Bucket {
  /** Nanoseconds since 1970. */
  readonly time: bigint;
  readonly numeric: Record<string, number>;
  readonly text: Record<string, string>;
}

/** The values of a point as stored. */
export interface StoredValues {
  readonly numeric_values: Readonly<Record<string, number>>;
  readonly string_values: Readonly<Record<string, string>>;
}

interface Total {
  value: number;
  count: number;
}

/** Memory of a bucket: every point can have other keys, and a bucket may span years. */
const maximumBytes = 8 * 1024 * 1024;
/** Of each value, besides its key and text. */
const entryBytes = 100;

/** Collects the points of one bucket. Strings support only count (a number) and last. */
export class BucketBuilder {
  readonly time: bigint;
  private readonly aggregation: Aggregation;
  private readonly descending: boolean;
  private readonly totals = new Map<string, Total>();
  private readonly texts = new Map<string, string>();
  private bytes = 0;

  /** `descending`: points are added newest first. */
  constructor(time: bigint, aggregation: Aggregation, descending: boolean) {
    this.time = time;
    this.aggregation = aggregation;
    this.descending = descending;
  }

  /** Adds a point, with only the requested keys. Throws FAILED_PRECONDITION if the bucket has too many. */
  add(values: StoredValues, isWanted: (key: string) => boolean): void {
    for (const [key, value] of Object.entries(values.numeric_values)) if (isWanted(key)) this.addNumber(key, value);
    if (this.aggregation !== 'count' && this.aggregation !== 'last') return;
    for (const [key, value] of Object.entries(values.string_values)) {
      if (!isWanted(key)) continue;
      // A key can be a number in one point and a string in another; its count is that of both.
      if (this.aggregation === 'count') this.addNumber(key, 0);
      else if (!this.descending || !this.texts.has(key)) this.setText(key, value);
    }
  }

  /** Returns the bucket, or undefined if it has no values. Throws FAILED_PRECONDITION if an aggregate exceeds a double. */
  end(): Bucket | undefined {
    if (this.totals.size === 0 && this.texts.size === 0) return undefined;
    const numbers = [...this.totals].map(([key, total]) => [key, this.resultOf(total)] as const);
    if (numbers.some(([, value]) => !Number.isFinite(value))) {
      throw failedPrecondition('an aggregate exceeds the range of a double');
    }
    return { time: this.time, numeric: Object.fromEntries(numbers), text: Object.fromEntries(this.texts) };
  }

  private setText(key: string, value: string): void {
    const before = this.texts.get(key);
    this.hold(before === undefined ? entryBytes + key.length + value.length : value.length - before.length);
    this.texts.set(key, value);
  }

  private hold(bytes: number): void {
    this.bytes += bytes;
    if (this.bytes > maximumBytes) {
      throw failedPrecondition('an interval has too many values: name the keys, or ask for shorter intervals');
    }
  }

  private addNumber(key: string, value: number): void {
    const total = this.totals.get(key);
    if (!total) {
      this.hold(entryBytes + key.length);
      this.totals.set(key, { value, count: 1 });
      return;
    }
    total.count += 1;
    if (this.aggregation === 'min') total.value = Math.min(total.value, value);
    else if (this.aggregation === 'max') total.value = Math.max(total.value, value);
    else if (this.aggregation !== 'last') total.value += value;
    else if (!this.descending) total.value = value;
  }

  private resultOf({ value, count }: Total): number {
    if (this.aggregation === 'count') return count;
    return this.aggregation === 'avg' ? value / count : value;
  }
}

/** Returns roughly the bytes of a bucket in a response. */
export function bucketBytes({ numeric, text }: Bucket): number {
  let bytes = 0;
  for (const key of Object.keys(numeric)) bytes += key.length + 20;
  for (const [key, value] of Object.entries(text)) bytes += key.length + value.length;
  return bytes;
}

// Checks the latest values of devices against the points of a segment.
import type { Transaction } from '../platform/database/database.ts';
import type { Findings } from './check.ts';

/** A point whose values must be in the latest values of its device. */
interface Point {
  readonly tenant_id: string;
  readonly device_id: string;
  readonly time: bigint;
  readonly payload: string;
  /** Null in segments of an earlier version. */
  readonly received: bigint | null;
}

type Entry = readonly [number | string, string];

/** What is stored of a device: its newest point, and the values of others. */
interface Stored {
  readonly document: {
    readonly numeric: Readonly<Record<string, Entry>>;
    readonly string: Readonly<Record<string, Entry>>;
  } | null;
  readonly time: bigint | null;
  readonly payload: string | null;
}

interface Values {
  readonly numeric_values: Readonly<Record<string, number>>;
  readonly string_values: Readonly<Record<string, string>>;
}

/** Devices whose stored values are read at once: those of one may take megabytes. */
const devicesAtOnce = 16;
/** Characters of points that are held. */
const mostCharacters = 32 * 1024 * 1024;

/** Collects the newest point of each device in a segment, of which there are few compared to its points. */
export class LatestChecks {
  private readonly newest = new Map<string, Point>();
  private readonly since: bigint | null;
  private characters = 0;

  /** `since` is that of the writer's tail: later points may not be written yet. Null: everything is written. */
  constructor(since: bigint | null) {
    this.since = since;
  }

  add(point: Point): void {
    if (this.since !== null && (point.received === null || point.received >= this.since)) return;
    const held = this.newest.get(point.device_id);
    if (held && held.time >= point.time) return;
    this.newest.set(point.device_id, point);
    this.characters += point.payload.length - (held?.payload.length ?? 0);
  }

  /** Whether the points are to be compared before more are added. Older ones of the same devices are then compared as well. */
  get isFull(): boolean {
    return this.characters > mostCharacters;
  }

  /** Compares the points with the stored documents, forgets them, and returns their number. */
  async run(tx: Transaction, findings: Findings): Promise<number> {
    const points = [...this.newest.values()];
    this.newest.clear();
    this.characters = 0;
    for (let first = 0; first < points.length; first += devicesAtOnce) {
      const some = points.slice(first, first + devicesAtOnce);
      const { rows } = await tx.query<Stored & { device_id: string }>(
        // Nothing is promised about devices that were deleted.
        `SELECT d.device_id, l.document, l.time, l.payload FROM devices d LEFT JOIN telemetry_latest l
           ON l.tenant_id = d.tenant_id AND l.device_id = d.device_id
         WHERE d.device_id = ANY($1) AND d.deleted_at IS NULL`,
        [some.map((point) => point.device_id)],
      );
      const stored = new Map(rows.map((row) => [row.device_id, row]));
      for (const point of some) {
        const row = stored.get(point.device_id);
        if (row === undefined) continue;
        const key = await wrongKey(tx, point, row);
        if (key === undefined) continue;
        const message = `the latest value of ${JSON.stringify(key)} is not that of its newest point`;
        findings.add('latest_values', point.device_id, point.tenant_id, message);
      }
    }
    return points.length;
  }
}

/** Returns a key of the point whose latest value is older, or of the same time but different; otherwise undefined. */
async function wrongKey(tx: Transaction, point: Point, stored: Stored): Promise<string | undefined> {
  const { numeric_values: numeric, string_values: text } = JSON.parse(point.payload) as Values;
  const newest = stored.payload === null ? undefined : (JSON.parse(stored.payload) as Values);
  const newer = (value: number | string | undefined, other: Entry | undefined): Entry | undefined => {
    if (value === undefined || stored.time === null) return other;
    return other && BigInt(other[1]) > stored.time ? other : [value, String(stored.time)];
  };
  const { document } = stored;
  const pairs = [
    ...Object.entries(numeric).map(
      ([key, value]) => [key, value, newer(own(newest?.numeric_values, key), own(document?.numeric, key))] as const,
    ),
    ...Object.entries(text).map(
      ([key, value]) => [key, value, newer(own(newest?.string_values, key), own(document?.string, key))] as const,
    ),
  ];
  for (const [key, value, held] of pairs) {
    if (held === undefined || BigInt(held[1]) < point.time) return key;
    if (BigInt(held[1]) > point.time || Object.is(held[0], value) || held[0] === value) continue;
    // Of points with the same time, any may have come last.
    if (!(await hasValue(tx, point, key, held[0]))) return key;
  }
  return undefined;
}

/** Returns the property of a name that may be any, such as `toString`. */
const own = <T>(values: Readonly<Record<string, T>> | undefined, key: string): T | undefined =>
  values && Object.hasOwn(values, key) ? values[key] : undefined;

async function hasValue(tx: Transaction, point: Point, key: string, value: number | string): Promise<boolean> {
  const field = typeof value === 'number' ? 'numeric_values' : 'string_values';
  const { rows } = await tx.query<{ payload: string }>(
    'SELECT payload FROM telemetry_points WHERE tenant_id = $1 AND device_id = $2 AND time = $3',
    [point.tenant_id, point.device_id, point.time],
  );
  return rows.some(
    ({ payload }) => (JSON.parse(payload) as Record<string, Record<string, unknown>>)[field]![key] === value,
  );
}

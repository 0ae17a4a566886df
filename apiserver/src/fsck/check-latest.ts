// Checks the latest values of devices against the points of a segment.
import type { Transaction } from '../platform/database/database.ts';
import { pagesOf } from '../platform/pages-of.ts';
import { readCursor, sizedPieces } from '../platform/statements/cursor.ts';
import { jsonBytes } from '../platform/statements/sized-rows.ts';
import type { Findings } from './check.ts';

/** A point whose values must be in the latest values of its device. */
interface Point {
  readonly tenant_id: string;
  readonly device_id: string;
  readonly time: bigint;
  /** Where its row is. */
  readonly place: string;
  /** Null in segments of an earlier version. */
  readonly received: bigint | null;
}

type Entry = readonly [number | string, string];

/** A point, and what is stored of its device: its newest point, and the values of others. */
interface ComparedRow {
  readonly tenant_id: string;
  readonly device_id: string;
  readonly time: bigint;
  /** The payload of the point. */
  readonly values: string;
  readonly document: {
    readonly numeric: Readonly<Record<string, Entry>>;
    readonly string: Readonly<Record<string, Entry>>;
  } | null;
  readonly stored_time: bigint | null;
  readonly payload: string | null;
}

interface Values {
  readonly numeric_values: Readonly<Record<string, number>>;
  readonly string_values: Readonly<Record<string, string>>;
}

const devicesAtOnce = 1000;

const pieces = sizedPieces(
  devicesAtOnce,
  `octet_length(p.payload) + coalesce(octet_length(l.payload), 0) + coalesce(${jsonBytes('l.document')}, 0)`,
);

/** Collects where the newest point of each device in a segment is: a point may take a mebibyte, and its device as much again. */
export class LatestChecks {
  private readonly newest = new Map<string, Point>();
  private readonly since: bigint | null;

  /** `since` is that of the writer's tail: later points may not be written yet. Null: everything is written. */
  constructor(since: bigint | null) {
    this.since = since;
  }

  add({ tenant_id, device_id, time, place, received }: Point): void {
    if (this.since !== null && (received === null || received >= this.since)) return;
    const held = this.newest.get(device_id);
    if (!held || held.time < time) this.newest.set(device_id, { tenant_id, device_id, time, place, received });
  }

  /** Compares the points, in a table of the same snapshot, with the stored documents, and returns their number. */
  async run(tx: Transaction, table: string, findings: Findings): Promise<number> {
    for (const points of pagesOf([...this.newest.values()], devicesAtOnce)) {
      // Nothing is promised about devices that were deleted.
      const text = `SELECT p.tenant_id, p.device_id, p.time, p.payload AS values, l.document, l.time AS stored_time, l.payload, ${pieces.column}
         FROM ${table} AS p JOIN devices d ON d.tenant_id = p.tenant_id AND d.device_id = p.device_id AND d.deleted_at IS NULL
         LEFT JOIN telemetry_latest l ON l.tenant_id = d.tenant_id AND l.device_id = d.device_id
         WHERE p.ctid = ANY($1::tid[])`;
      const query = { name: 'latest', text, values: [points.map(({ place }) => place)] };
      for await (const rows of readCursor<ComparedRow>(tx, query, pieces.count)) {
        for (const row of rows) {
          const key = await wrongKey(tx, row);
          if (key === undefined) continue;
          const message = `the latest value of ${JSON.stringify(key)} is not that of its newest point`;
          findings.add('latest_values', row.device_id, row.tenant_id, message);
        }
      }
    }
    return this.newest.size;
  }
}

/** Returns a key of the point whose latest value is older, or of the same time but different; otherwise undefined. */
async function wrongKey(tx: Transaction, row: ComparedRow): Promise<string | undefined> {
  const { time, document, stored_time: storedTime } = row;
  const { numeric_values: numeric, string_values: text } = JSON.parse(row.values) as Values;
  const newest = row.payload === null ? undefined : (JSON.parse(row.payload) as Values);
  const newer = (value: number | string | undefined, other: Entry | undefined): Entry | undefined => {
    if (value === undefined || storedTime === null) return other;
    return other && BigInt(other[1]) > storedTime ? other : [value, String(storedTime)];
  };
  const pairs = [
    ...Object.entries(numeric).map(
      ([key, value]) => [key, value, newer(own(newest?.numeric_values, key), own(document?.numeric, key))] as const,
    ),
    ...Object.entries(text).map(
      ([key, value]) => [key, value, newer(own(newest?.string_values, key), own(document?.string, key))] as const,
    ),
  ];
  /** Values of the same time that are different: of points with that time, any may have come last. */
  const others = new Map<string, number | string>();
  for (const [key, value, held] of pairs) {
    if (held === undefined || BigInt(held[1]) < time) return key;
    if (BigInt(held[1]) === time && !Object.is(held[0], value) && held[0] !== value) others.set(key, held[0]);
  }
  if (others.size > 0) await removeValues(tx, row, others);
  return others.keys().next().value;
}

/** Returns the property of a name that may be any, such as `toString`. */
const own = <T>(values: Readonly<Record<string, T>> | undefined, key: string): T | undefined =>
  values && Object.hasOwn(values, key) ? values[key] : undefined;

const samePieces = sizedPieces(100, 'octet_length(payload)');

/** Removes the values that points of the same device and time have: there may be very many of these. */
async function removeValues(tx: Transaction, point: ComparedRow, values: Map<string, number | string>): Promise<void> {
  const text = `SELECT payload, ${samePieces.column} FROM telemetry_points WHERE tenant_id = $1 AND device_id = $2 AND time = $3`;
  const query = { name: 'same', text, values: [point.tenant_id, point.device_id, point.time] };
  for await (const rows of readCursor<{ payload: string }>(tx, query, samePieces.count)) {
    // To the end, so that the cursor is closed.
    if (values.size === 0) continue;
    for (const { payload } of rows) {
      const { numeric_values: numeric, string_values: texts } = JSON.parse(payload) as Values;
      for (const [key, value] of values)
        if ((typeof value === 'number' ? own(numeric, key) : own(texts, key)) === value) values.delete(key);
    }
  }
}

// The rows of telemetry_latest: the newest point of a device as it is and, beside it, a document of the values that it does not
// replace. The next point with the same names replaces the newest one without anything being read.
import { createHash } from 'node:crypto';
import type { Transaction } from '../../platform/database/database.ts';
import { pagesOfBytes } from '../../platform/pages-of.ts';
import { columns } from '../../platform/statements/columns.ts';
import { deleteOfDevices } from '../../platform/statements/delete-of-devices.ts';
import { rowsOf } from '../../platform/statements/index-plans.ts';
import { jsonBytes } from '../../platform/statements/sized-rows.ts';
import { holdOffPurges } from '../../policies/tenant-reader.ts';
import { parsePayload } from '../points/payload.ts';
import {
  fromDocument,
  type LatestBuilder,
  type LatestDocument,
  type LatestValues,
  mergeLatest,
  mergePoint,
  noLatestValues,
  removeOldest,
  type TimedPoint,
  toDocument,
} from './latest-values.ts';

/** What is stored of a device. */
export interface StoredLatest {
  readonly document: LatestDocument;
  /** The newest point; null in rows of an earlier version, whose document has all values. */
  readonly time: bigint | null;
  readonly payload: string | null;
}

/** What has arrived of a device. */
export interface LatestChange {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly points: LatestBuilder;
}

/** Returns the rows of devices in their order: null for one that has none, 'large' for one that has more than so many bytes. */
export async function readLatest(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  mostBytes: number,
): Promise<(StoredLatest | null | 'large')[]> {
  const { rows } = await tx.query<StoredLatest & { readonly bytes: number | null }>(
    `SELECT latest.time, latest.bytes, CASE WHEN latest.bytes <= $3::int4 THEN latest.document END AS document,
       CASE WHEN latest.bytes <= $3::int4 THEN latest.payload END AS payload
     FROM ${rowsOf('$2::uuid[]')} AS asked (device_id, place)
     LEFT JOIN LATERAL (
       SELECT document, time, payload, ${jsonBytes('document')} + coalesce(octet_length(payload), 0) AS bytes
       FROM telemetry_latest AS l
       WHERE l.tenant_id = $1 AND l.device_id = asked.device_id LIMIT 1
     ) AS latest ON true ORDER BY place`,
    [tenantId, deviceIds, mostBytes],
  );
  return rows.map(({ bytes, ...row }) => (bytes === null ? null : bytes <= mostBytes ? row : 'large'));
}

/** Returns the row of a device, however large it is, or null. */
export async function readLargeLatest(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<StoredLatest | null> {
  const { rows } = await tx.query<StoredLatest & Record<string, unknown>>(
    'SELECT document, time, payload FROM telemetry_latest WHERE tenant_id = $1 AND device_id = $2',
    [tenantId, deviceId],
  );
  return rows[0] ?? null;
}

/** Returns the values of a row. */
export function valuesOf({ document, time, payload }: StoredLatest): LatestValues {
  const values = fromDocument(document);
  if (time !== null && payload !== null) mergePoint(values, parsePayload(payload), time);
  return values;
}

/**
 * Merges changes, which are in order of their devices, into the rows. Leaves out those of tenants whose purge has begun:
 * values wait for minutes, and nothing would delete the rows.
 */
export async function writeLatest(tx: Transaction, all: readonly LatestChange[]): Promise<void> {
  const purged = await holdOffPurges(tx, [...new Set(all.map(({ tenantId }) => tenantId))]);
  const changes = purged.size === 0 ? all : all.filter(({ tenantId }) => !purged.has(tenantId));
  const single = changes.flatMap((change) => {
    const { newest, older } = change.points.parts;
    return newest && !older ? { change, newest } : [];
  });
  const others = new Set(changes);
  if (single.length > 0) {
    const { rows } = await tx.query<{ place: number }>(
      `WITH written AS (
         INSERT INTO telemetry_latest AS latest (tenant_id, device_id, names, time, payload)
         SELECT * FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::int8[], string_to_array($5, chr(10)))
         ON CONFLICT (device_id) DO UPDATE SET time = excluded.time, payload = excluded.payload
           WHERE latest.names = excluded.names AND latest.time <= excluded.time
         RETURNING device_id
       )
       SELECT place::int4 FROM unnest($2::uuid[]) WITH ORDINALITY AS given (device_id, place)
       WHERE device_id NOT IN (SELECT device_id FROM written)`,
      [
        single.map(({ change }) => change.tenantId),
        single.map(({ change }) => change.deviceId),
        single.map(({ newest }) => namesOf(newest)),
        single.map(({ newest }) => newest.time),
        // A payload has no line breaks: JSON escapes them.
        single.map(({ newest }) => newest.payload).join('\n'),
      ],
    );
    for (const { change } of single) others.delete(change);
    for (const { place } of rows) others.add(single[place - 1]!.change);
  }
  await mergeRows(
    tx,
    changes.filter((change) => others.has(change)),
  );
}

/** Bytes of a document that is read with others, and of the larger ones that are read at once: hostile devices may all have a megabyte. */
const smallDocument = 64 * 1024;
const documentsAtOnce = 4 * 1024 * 1024;

/** Bytes of a document at most, approximately: as text it takes up to that much more than it does compressed. */
const documentBytes = `CASE WHEN pg_column_compression(document) IS NULL THEN 2 ELSE 50 END * pg_column_size(document)`;

/** Merges changes of any points. */
async function mergeRows(tx: Transaction, changes: readonly LatestChange[]): Promise<void> {
  if (changes.length === 0) return;
  const stored = await tx.query<Omit<StoredLatest, 'document'> & StoredSize>(
    `SELECT device_id, time, payload, bytes, CASE WHEN bytes <= ${smallDocument} THEN document END AS document FROM (
       SELECT device_id, time, payload, document, ${documentBytes} AS bytes FROM telemetry_latest
       WHERE device_id = ANY($1) ORDER BY device_id FOR UPDATE) AS held`,
    [changes.map(({ deviceId }) => deviceId)],
  );
  const rows = new Map(stored.rows.map((row) => [row.device_id, row]));
  const small: MergedLatest[] = [];
  const large: (LatestChange & { readonly bytes: number })[] = [];
  for (const change of changes) {
    const row = rows.get(change.deviceId);
    if (!row) continue;
    const { document, bytes } = row;
    if (document === null) large.push({ ...change, bytes });
    else small.push({ deviceId: change.deviceId, ...mergedRow(change.points, { ...row, document }) });
  }
  await updateRows(tx, small);
  for (const some of pagesOfBytes(large, documentsAtOnce, ({ bytes }) => bytes)) {
    const read = await tx.query<StoredLatest & { readonly device_id: string }>(
      'SELECT device_id, document, time, payload FROM telemetry_latest WHERE device_id = ANY($1)',
      [some.map(({ deviceId }) => deviceId)],
    );
    const documents = new Map(read.rows.map((row) => [row.device_id, row]));
    await updateRows(
      tx,
      some.map(({ deviceId, points }) => ({ deviceId, ...mergedRow(points, documents.get(deviceId)) })),
    );
  }
  const first = changes.filter(({ deviceId }) => !rows.has(deviceId));
  if (first.length === 0) return;
  const given = first.map(({ tenantId, deviceId, points }) => ({ tenantId, deviceId, ...mergedRow(points) }));
  const inserted = await tx.query<{ device_id: string }>(
    `INSERT INTO telemetry_latest (tenant_id, device_id, document, names, time, payload)
     SELECT * FROM unnest($1::text[], $2::uuid[], $3::jsonb[], $4::uuid[], $5::int8[], $6::text[])
     ON CONFLICT DO NOTHING RETURNING device_id`,
    columns(given, 'tenantId', 'deviceId', 'document', 'names', 'time', 'payload'),
  );
  if (inserted.rows.length === first.length) return;
  // Another process has inserted the others since the SELECT.
  const isInserted = new Set(inserted.rows.map((row) => row.device_id));
  await mergeRows(
    tx,
    first.filter(({ deviceId }) => !isInserted.has(deviceId)),
  );
}

interface StoredSize {
  readonly device_id: string;
  readonly bytes: number;
  /** Null if it is large. */
  readonly document: LatestDocument | null;
}

type MergedLatest = ReturnType<typeof mergedRow> & { readonly deviceId: string };

async function updateRows(tx: Transaction, rows: readonly MergedLatest[]): Promise<void> {
  if (rows.length === 0) return;
  await tx.query(
    `UPDATE telemetry_latest SET document = given.document, names = given.names, time = given.time, payload = given.payload
     FROM unnest($1::uuid[], $2::jsonb[], $3::uuid[], $4::int8[], $5::text[]) AS given (device_id, document, names, time, payload)
     WHERE telemetry_latest.device_id = given.device_id`,
    columns(rows, 'deviceId', 'document', 'names', 'time', 'payload'),
  );
}

/** Returns the row of a device after a change. */
function mergedRow(points: LatestBuilder, stored?: StoredLatest) {
  const others = stored ? fromDocument(stored.document) : noLatestValues();
  const { newest: arrived, older } = points.parts;
  let newest: StoredPoint | undefined =
    stored && stored.time !== null && stored.payload !== null
      ? { time: stored.time, payload: stored.payload }
      : undefined;
  if (older) mergeLatest(others, older);
  if (arrived && newest && arrived.time < newest.time) mergePoint(others, arrived, arrived.time);
  else if (arrived) {
    if (newest) mergePoint(others, parsePayload(newest.payload), newest.time);
    newest = arrived;
  }
  if (newest) removeReplaced(others, newest);
  removeOldest(others);
  return {
    document: toDocument(others),
    names: newest ? namesOf(newest) : null,
    time: newest?.time ?? null,
    payload: newest?.payload ?? null,
  };
}

type StoredPoint = Pick<TimedPoint, 'time' | 'payload' | 'names'>;

/** Removes the values that those of a point replace. */
function removeReplaced(values: LatestValues, { time, payload }: StoredPoint): void {
  const { numericValues, stringValues } = parsePayload(payload);
  for (const key of Object.keys(numericValues))
    if ((values.numeric.get(key)?.time ?? time) <= time) values.numeric.delete(key);
  for (const key of Object.keys(stringValues))
    if ((values.text.get(key)?.time ?? time) <= time) values.text.delete(key);
}

/** By the object that points with the same names share. */
const knownNames = new WeakMap<object, string>();

/** Returns an id of a point's names. */
function namesOf({ names, payload }: StoredPoint): string {
  const known = names && knownNames.get(names);
  if (known !== undefined) return known;
  const { numericValues, stringValues } = parsePayload(payload);
  const id = createHash('sha256')
    .update(JSON.stringify([Object.keys(numericValues).sort(), Object.keys(stringValues).sort()]))
    .digest('hex')
    .slice(0, 32);
  if (names) knownNames.set(names, id);
  return id;
}

/** Deletes up to `limit` rows of deleted devices, and returns their number. */
export const deleteLatestOf = (
  tx: Transaction,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
  limit: number,
): Promise<number> => deleteOfDevices(tx, 'telemetry_latest', tenantIds, deviceIds, limit);

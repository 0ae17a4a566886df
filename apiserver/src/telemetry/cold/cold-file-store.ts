// SQL of the catalogue of cold files.
import type { Transaction } from '../../platform/database/database.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { joinTenant, retainedFrom } from '../../policies/tenant-reader.ts';
import type { ColdFile } from './cold-files.ts';
import type { FileFacts } from './file-encoder.ts';
import type { NamedFile, Place } from './file-layout.ts';
import { manyRuns } from './merge-decision.ts';

/** A file that an attempt has written. */
export type NewFile = NamedFile & FileFacts & { readonly runId: string };

interface FileRow {
  file_id: string;
  tenant_id: string;
  date: string;
  run_id: string;
  attempt_id: string;
  place: Place;
  rows: number;
  bytes: number;
  least_device: string;
  greatest_device: string;
  least_time: bigint;
  greatest_time: bigint;
  least_received: bigint;
  greatest_received: bigint;
  tail_offset: number;
  tail_sha256: Buffer;
}

const columns = `file_id, tenant_id, date::text AS date, run_id, attempt_id, place, rows, bytes::float8 AS bytes, least_device,
  greatest_device, least_time, greatest_time, least_received, greatest_received, tail_offset::float8 AS tail_offset, tail_sha256`;

const toFile = (row: FileRow): ColdFile => ({
  fileId: row.file_id,
  tenantId: row.tenant_id,
  date: row.date,
  runId: row.run_id,
  attemptId: row.attempt_id,
  place: row.place,
  rows: row.rows,
  bytes: row.bytes,
  leastDevice: row.least_device,
  greatestDevice: row.greatest_device,
  leastTime: row.least_time,
  greatestTime: row.greatest_time,
  leastReceived: row.least_received,
  greatestReceived: row.greatest_received,
  tailOffset: row.tail_offset,
  tailSha256: row.tail_sha256,
});

/** Returns the number of files of a tenant. */
export async function countColdFiles(tx: Transaction, tenantId: string): Promise<number> {
  const { rows } = await tx.query<{ files: number }>(
    'SELECT count(*)::int4 AS files FROM cold_files WHERE tenant_id = $1',
    [tenantId],
  );
  return rows[0]!.files;
}

/** Records that an attempt begins to write. */
export async function beginAttempt(tx: Transaction, attemptId: string): Promise<void> {
  await tx.query('INSERT INTO cold_attempts (attempt_id) VALUES ($1)', [attemptId]);
}

/** Locks an attempt. Throws if another process has taken it for one that was cut short. */
export async function holdAttempt(tx: Transaction, attemptId: string): Promise<void> {
  const { rowCount } = await tx.query('SELECT FROM cold_attempts WHERE attempt_id = $1 AND NOT ended FOR UPDATE', [
    attemptId,
  ]);
  if (rowCount !== 1) throw new Error('the attempt was given up by another process');
}

/** Rows of a statement: a turn may have points of a tenant in every date since 1970. */
const rowsAtOnce = 1000;

/** Adds files, as written by an attempt, to the catalogue. */
export async function addFiles(tx: Transaction, files: readonly NewFile[]): Promise<void> {
  for (const page of pagesOf(files, rowsAtOnce)) {
    const column = <Name extends keyof NewFile>(name: Name): NewFile[Name][] => page.map((file) => file[name]);
    await tx.query(
      `INSERT INTO cold_files (state, place, file_id, tenant_id, date, run_id, attempt_id, rows, bytes, least_device, greatest_device,
         least_time, greatest_time, least_received, greatest_received, tail_offset, tail_sha256)
       SELECT 'live', 'staging', f.* FROM unnest($1::uuid[], $2::text[], $3::date[], $4::uuid[], $5::uuid[], $6::int4[], $7::int8[],
         $8::uuid[], $9::uuid[], $10::int8[], $11::int8[], $12::int8[], $13::int8[], $14::int8[], $15::bytea[]) AS f`,
      [
        ...[column('fileId'), column('tenantId'), column('date'), column('runId'), column('attemptId')],
        ...[column('rows'), column('bytes'), column('leastDevice'), column('greatestDevice'), column('leastTime')],
        ...[column('greatestTime'), column('leastReceived'), column('greatestReceived'), column('tailOffset')],
        column('tailSha256'),
      ],
    );
  }
}

/** Supersedes files. Throws unless all of them are live. */
export async function supersedeFiles(tx: Transaction, fileIds: readonly string[]): Promise<void> {
  const { rowCount } = await tx.query(
    `UPDATE cold_files SET state = 'superseded', superseded_at = now() WHERE file_id = ANY($1) AND state = 'live'`,
    [fileIds],
  );
  if (rowCount !== fileIds.length) throw new Error('a file was superseded by another process');
}

/** SQL: the live files `f` all of whose points are past their tenant's retention. */
const expiredFiles = `cold_files AS f ${joinTenant('f')}
       WHERE f.state = 'live' AND t.retention_days > 0 AND f.date < current_date - t.retention_days + 1
         AND f.greatest_time < ${retainedFrom}`;

/** Reports whether `supersedeExpired` would find a file. */
export async function hasExpiredFiles(tx: Transaction): Promise<boolean> {
  const { rowCount } = await tx.query(`SELECT FROM ${expiredFiles} LIMIT 1`);
  return rowCount === 1;
}

/**
 * Supersedes some files all of whose points are past their tenant's retention. Returns their number; there may be more if it is
 * `limit`.
 */
export async function supersedeExpired(tx: Transaction, limit: number): Promise<number> {
  const { rows } = await tx.query<{ tenant_id: string; date: string }>(
    `UPDATE cold_files SET state = 'superseded', superseded_at = now() WHERE file_id IN (
       SELECT file_id FROM ${expiredFiles} LIMIT $1)
     RETURNING tenant_id, date::text AS date`,
    [limit],
  );
  await scheduleCompaction(
    tx,
    rows.map((row) => ({ tenantId: row.tenant_id, date: row.date })),
  );
  return rows.length;
}

/** A UTC date of a tenant's points. */
export interface TenantDate {
  readonly tenantId: string;
  readonly date: string;
}

const columnsOf = (dates: readonly TenantDate[]): [string[], string[]] => [
  dates.map(({ tenantId }) => tenantId),
  dates.map(({ date }) => date),
];

/** SQL: the dates `g` of `columnsOf`, each once. */
const givenDates = `(SELECT DISTINCT * FROM unnest($1::text[], $2::date[])) AS g (tenant_id, date)`;

/** Sets when the runs of dates are merged, after files were added or superseded. */
export async function scheduleCompaction(tx: Transaction, dates: readonly TenantDate[]): Promise<void> {
  for (const page of pagesOf(dates, rowsAtOnce)) {
    await tx.query(
      // One pass, because there are no statistics on files that were just added: by date, each could read all of them.
      `WITH counted AS MATERIALIZED (
         SELECT tenant_id, date, count(DISTINCT run_id) AS runs FROM (
           SELECT tenant_id, date, run_id, false AS is_given FROM cold_files
           WHERE state = 'live' AND tenant_id = ANY ($1::text[]) AND date = ANY ($2::date[])
           UNION ALL SELECT tenant_id, date, NULL, true FROM unnest($1::text[], $2::date[]) AS g (tenant_id, date)
         ) AS f GROUP BY tenant_id, date HAVING bool_or(is_given)
       ), none AS (
         DELETE FROM cold_dates d USING counted c WHERE d.tenant_id = c.tenant_id AND d.date = c.date AND c.runs < 2
       )
       INSERT INTO cold_dates (tenant_id, date, compact_at)
         SELECT tenant_id, date, CASE WHEN runs >= ${manyRuns} THEN now() ELSE now() + interval '1 day' END
         FROM counted WHERE runs >= 2
       ON CONFLICT (tenant_id, date) DO UPDATE SET compact_at = excluded.compact_at`,
      columnsOf(page),
    );
  }
}

/** A date whose runs should be merged, with its live files: run by run, those of a run in order. */
export interface DueDate extends TenantDate {
  readonly files: readonly ColdFile[];
}

/** Reports whether `datesToCompact` would find a date. */
export async function isAnyDateToCompact(tx: Transaction): Promise<boolean> {
  const { rowCount } = await tx.query('SELECT FROM cold_dates WHERE compact_at <= now() LIMIT 1');
  return rowCount === 1;
}

/**
 * Returns up to `limit` dates whose runs should be merged, longest due first. Ids of files rise within a run, as its rows do. Devices
 * and times of files do not tell their order: one that begins with a device may end with others, whose points are of any time.
 */
export async function datesToCompact(tx: Transaction, limit: number): Promise<DueDate[]> {
  const { rows: dates } = await tx.query<{ tenant_id: string; date: string }>(
    'SELECT tenant_id, date::text AS date FROM cold_dates WHERE compact_at <= now() ORDER BY compact_at LIMIT $1',
    [limit],
  );
  const due = dates.map((row) => ({ tenantId: row.tenant_id, date: row.date }));
  if (due.length === 0) return [];
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM cold_files JOIN ${givenDates} USING (tenant_id, date) WHERE state = 'live'
     ORDER BY run_id, file_id`,
    columnsOf(due),
  );
  const keyOf = ({ tenantId, date }: TenantDate): string => `${date} ${tenantId}`;
  const files = Map.groupBy(rows.map(toFile), keyOf);
  return due.map((date) => ({ ...date, files: files.get(keyOf(date)) ?? [] }));
}

/** Delays the compaction of a date, for example because one of its files cannot be read. */
export async function postponeCompaction(tx: Transaction, tenantId: string, date: string): Promise<void> {
  await tx.query(`UPDATE cold_dates SET compact_at = now() + interval '1 hour' WHERE tenant_id = $1 AND date = $2`, [
    tenantId,
    date,
  ]);
}

/** Points of a device. Times are nanoseconds since 1970; `to` is exclusive. */
export interface ColdRange {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly from: bigint;
  readonly to: bigint;
}

/** Returns the files of the first dates, or of the last, that may have points in a range, by date; those of a run in order. */
export async function filesOfRange(
  tx: Transaction,
  { tenantId, deviceId, from, to }: ColdRange,
  descending: boolean,
  dates: number,
): Promise<ColdFile[]> {
  const direction = descending ? 'DESC' : 'ASC';
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM (
       SELECT *, dense_rank() OVER (ORDER BY date ${direction}) AS place_of_date FROM cold_files
       WHERE tenant_id = $1 AND state = 'live' AND least_device <= $2 AND greatest_device >= $2
         AND date >= (to_timestamp(($3::int8 / 1000000000)::float8) AT TIME ZONE 'UTC')::date
         AND date <= (to_timestamp(($4::int8 / 1000000000)::float8) AT TIME ZONE 'UTC')::date
         AND least_time < $4 AND greatest_time >= $3
     ) AS found WHERE place_of_date <= $5 ORDER BY date ${direction}, file_id ${direction}`,
    [tenantId, deviceId, from, to, dates],
  );
  return rows.map(toFile);
}

/** Returns the files with points of a device that may have arrived from one time to another, inclusive. */
export async function filesByArrival(
  tx: Transaction,
  { tenantId, deviceId, from, to }: ColdRange,
): Promise<ColdFile[]> {
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM cold_files
     WHERE tenant_id = $1 AND state = 'live' AND greatest_received >= $3 AND least_received <= $4
       AND least_device <= $2 AND greatest_device >= $2 ORDER BY greatest_received`,
    [tenantId, deviceId, from, to],
  );
  return rows.map(toFile);
}

/** Returns the live files of a tenant with points that arrived in a range of time. Nanoseconds since 1970, both inclusive. */
export async function filesOfArrivals(
  tx: Transaction,
  tenantId: string,
  from: bigint,
  to: bigint,
): Promise<ColdFile[]> {
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM cold_files
     WHERE tenant_id = $1 AND state = 'live' AND greatest_received >= $2 AND least_received <= $3
     ORDER BY greatest_received`,
    [tenantId, from, to],
  );
  return rows.map(toFile);
}

/** Returns ids of live files, of one tenant or of all, in order: up to `limit` after one. */
export async function listLiveFiles(
  tx: Transaction,
  tenantId: string | undefined,
  after: string,
  limit: number,
): Promise<string[]> {
  const { rows } = await tx.query<{ file_id: string }>(
    `SELECT file_id FROM cold_files
     WHERE state = 'live' AND file_id > $1 AND ($2::text IS NULL OR tenant_id = $2) ORDER BY file_id LIMIT $3`,
    [after, tenantId ?? null, limit],
  );
  return rows.map((row) => row.file_id);
}

/** Returns a live file, or undefined. */
export async function liveFile(tx: Transaction, fileId: string): Promise<ColdFile | undefined> {
  const { rows } = await tx.query<FileRow>(`SELECT ${columns} FROM cold_files WHERE file_id = $1 AND state = 'live'`, [
    fileId,
  ]);
  return rows[0] && toFile(rows[0]);
}

/** A file that is not where it belongs. */
export interface MisplacedFile extends NamedFile {
  readonly place: 'staging' | 'own';
}

/** Returns files to be moved: superseded ones, which must leave first, before those that take their place. */
export async function misplacedFiles(tx: Transaction, limit: number): Promise<MisplacedFile[]> {
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM cold_files WHERE place = 'staging' OR (state = 'superseded' AND place = 'own')
     ORDER BY state = 'live', created_at LIMIT $1`,
    [limit],
  );
  return rows.map((row) => toFile(row) as ColdFile & MisplacedFile);
}

/** Records where files have been moved. */
export async function notePlace(tx: Transaction, fileIds: readonly string[], place: Place): Promise<void> {
  await tx.query('UPDATE cold_files SET place = $2 WHERE file_id = ANY($1)', [fileIds, place]);
}

/** Returns attempts that have no file in staging any more, or never had one in the catalogue. */
export async function finishedAttempts(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ attempt_id: string }>(
    `SELECT attempt_id FROM cold_attempts a
     WHERE NOT EXISTS (SELECT FROM cold_files f WHERE f.attempt_id = a.attempt_id AND f.place = 'staging')`,
  );
  return rows.map((row) => row.attempt_id);
}

/** Ends an attempt, whose commit then fails if another process still runs it. */
export async function endAttempt(tx: Transaction, attemptId: string): Promise<void> {
  await tx.query('UPDATE cold_attempts SET ended = true WHERE attempt_id = $1', [attemptId]);
}

/** Forgets an attempt of which nothing is left. */
export async function forgetAttempt(tx: Transaction, attemptId: string): Promise<void> {
  await tx.query('DELETE FROM cold_attempts WHERE attempt_id = $1', [attemptId]);
}

/** Seconds that a superseded file is kept. */
const supersededSeconds = 3600;

/** Returns files that were superseded an hour ago. */
export async function filesToRemove(tx: Transaction, limit: number): Promise<NamedFile[]> {
  const { rows } = await tx.query<FileRow>(
    `SELECT ${columns} FROM cold_files
     WHERE state = 'superseded' AND place = 'superseded' AND superseded_at < now() - make_interval(secs => $1)
     ORDER BY superseded_at LIMIT $2`,
    [supersededSeconds, limit],
  );
  return rows.map(toFile);
}

/** Removes superseded files from the catalogue. */
export async function forgetFiles(tx: Transaction, fileIds: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM cold_files WHERE file_id = ANY($1) AND state = 'superseded'`, [fileIds]);
}

/** Forgets the superseded files of an installation that was copied: only its live files were. */
export async function forgetSuperseded(tx: Transaction): Promise<void> {
  await tx.query(`DELETE FROM cold_files WHERE state = 'superseded'`);
}

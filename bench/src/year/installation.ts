// Fills an empty installation with a year of data.
import { statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { pathToFileURL } from 'node:url';
import { MessageChannel, type MessagePort, Worker } from 'node:worker_threads';
import pg from 'pg';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { mergeNextRuns } from '../../../apiserver/src/telemetry/leaves/packing.ts';
import { indexNextSegment } from '../../../apiserver/src/telemetry/write/segments.ts';
import { disableIndexes, rebuildIndexes, requireIndexes, type RestartableServer, withBulkLoad } from './bulk-load.ts';
import type { ColdThreadData } from './cold-thread.ts';
import { fillAuditLog, fillOutbox } from './events.ts';
import {
  countedTables,
  countFleet,
  deviceNumbers,
  type Filling,
  fleetFillings,
  idFunctions,
  segmentsOfBefore,
} from './fleet.ts';
import { hotDays, pointTables, unorderedIndex } from './points.ts';
import type { PointsThreadData } from './points-thread.ts';
import type { Sizes } from './sizes.ts';
import { traceFillings } from './traces.ts';

/** Where to fill: an empty database, as its owner and as a superuser. */
export interface InstallationAddress extends RestartableServer {
  readonly databaseUrl: string;
  /** For the cold files, which must be readable by the apiserver. */
  readonly coldFolder: string;
}

/** Settings of an apiserver on a populated installation: its cold files, and no others. */
export const coldSettings = ({ coldFolder }: Pick<InstallationAddress, 'coldFolder'>): Record<string, string> => ({
  KELLET_COLD_URL: pathToFileURL(coldFolder).href,
  KELLET_HOT_HOURS: String(hotDays * 24),
});

/** Returns when work will end that began then and of which so much is done, as far as that can be told. */
function remaining(started: number, done: number): string {
  if (done === 0) return '';
  const milliseconds = ((performance.now() - started) * (1 - done)) / done;
  return `, until about ${new Date(Date.now() + milliseconds).toISOString().slice(11, 19)} UTC`;
}

/** What a device with everything of it, a batch and a point take on the disk, with their indexes and what building these needs. */
const bytesOf = { device: 14_500, batch: 1600, coldPoint: 75, hotPoint: 320 };
/** For WAL, and of the disk that is left free. */
const spareBytes = 2e9;

/** Throws if the folder has no room for so many rows. */
async function checkDisk(
  folder: string,
  { devices, batches, coldPoints, hotPoints }: Sizes,
  report: (line: string) => void,
) {
  const { bavail, bsize } = await statfs(folder);
  const needed =
    devices * bytesOf.device +
    batches * bytesOf.batch +
    coldPoints * bytesOf.coldPoint +
    hotPoints * bytesOf.hotPoint +
    spareBytes;
  const gigabytes = (count: number) => `${(count / 1e9).toFixed(1)} GB`;
  report(`disk: needs about ${gigabytes(needed)}, has ${gigabytes(bavail * bsize)}`);
  if (bavail * bsize < needed) throw new Error('the disk is too small for this SCALE');
}

/** Migrates a database and fills it. */
export async function fillInstallation(
  address: InstallationAddress,
  sizes: Sizes,
  report: (line: string) => void,
): Promise<void> {
  await checkDisk(tmpdir(), sizes, report);
  await withBulkLoad(address, () => fillDatabase(address, sizes, report));
}

/** Reports how long work takes. */
type Timed = (what: string, work: () => Promise<unknown>) => Promise<void>;

async function fillDatabase(address: InstallationAddress, sizes: Sizes, report: (line: string) => void): Promise<void> {
  const logger = createLogger('warn');
  const database = new Database(address.databaseUrl, logger);
  await migrate(database, logger);
  const [client, other] = await Promise.all([connectForFilling(address), connectForFilling(address)]);
  const timed: Timed = async (what, work) => {
    const started = performance.now();
    await work();
    report(`${what}: ${((performance.now() - started) / 1000).toFixed(1)} s`);
  };
  try {
    await client.query(idFunctions);
    await timed('devices', () => client.query(deviceNumbers(sizes)));
    await timed('segments', () => insertRows(client, segmentsOfBefore(sizes)));
    const started = performance.now();
    const progress = (done: number) => report(`points: ${(done * 100).toFixed(0)} %${remaining(started, done)}`);
    await Promise.all([
      (async () => {
        // Its heads are points.
        await timed('audit log', () => fillAuditLog(other, sizes));
        await timed('outbox', () => fillOutbox(other, sizes));
        await timed('points, batches and transactions', () => fillPoints(address, sizes, progress));
      })(),
      fillTables(client, sizes, timed),
    ]);
    await client.query('DROP SCHEMA year CASCADE');
    await Promise.all([
      timed('indexes of batches', () => rebuildIndexes(client, 'index', unorderedIndex)),
      (async () => {
        for (const table of pointTables.filter((name) => name !== 'anchor_batches'))
          await timed(`indexes of ${table}`, () => rebuildIndexes(other, 'table', table));
        await timed('indexes of segments', async () => {
          while (await indexNextSegment(database));
        });
        await timed('merged leaves', async () => {
          while (await mergeNextRuns(database));
        });
      })(),
    ]);
    await requireIndexes(client);
    await timed('statistics', () => client.query('VACUUM ANALYZE'));
    await reportSizes(client, report);
  } finally {
    await client.end();
    await other.end();
    await database.close();
  }
}

/** Reports what the largest tables take on the disk, those of segments as one, and everything together. */
async function reportSizes(client: pg.Client, report: (line: string) => void): Promise<void> {
  const { rows } = await client.query<{ name: string; rows: string; bytes: string }>(
    `SELECT regexp_replace(relname, '_[0-9]+$', '_N') AS name, greatest(sum(reltuples), 0)::int8 AS rows,
       sum(pg_total_relation_size(oid)) AS bytes
     FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace GROUP BY 1 ORDER BY sum(pg_total_relation_size(oid)) DESC LIMIT 12`,
  );
  const gigabytes = (bytes: string) => `${(Number(bytes) / 1e9).toFixed(3)} GB`;
  for (const table of rows) report(`${table.name}: ${table.rows} rows, ${gigabytes(table.bytes)}`);
  const totals = await client.query<{ database: string; files: string; cold: string }>(
    `SELECT pg_database_size(current_database()) AS database, count(*) AS files, coalesce(sum(bytes), 0) AS cold FROM cold_files`,
  );
  const { database, files, cold } = totals.rows[0]!;
  report(`database: ${gigabytes(database)}, ${files} cold files: ${gigabytes(cold)}`);
}

/**
 * Connects as a superuser without triggers and foreign keys: the rows are consistent by construction, and what triggers add is added
 * by statements.
 */
async function connectForFilling({ superuserUrl }: InstallationAddress): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: superuserUrl });
  await client.connect();
  await client.query('SET session_replication_role = replica');
  return client;
}

async function insertRows(client: pg.Client, { table, columns, rows }: Filling): Promise<void> {
  await client.query(`INSERT INTO ${table} (${columns}) ${rows}`).catch((error: unknown) => {
    throw new Error(`${table} cannot be filled`, { cause: error });
  });
}

/** Fills all tables but those of points, in one transaction. */
async function fillTables(client: pg.Client, sizes: Sizes, timed: Timed): Promise<void> {
  const fillings = [...fleetFillings(sizes), ...traceFillings(sizes)];
  const tables = [...new Set(fillings.map(({ table }) => table)), ...countedTables];
  await client.query('BEGIN');
  await client.query(`TRUNCATE ${tables.join(', ')} CASCADE`);
  await disableIndexes(client, tables);
  for (const filling of fillings)
    await timed(filling.table, async () => {
      await insertRows(client, filling);
      await rebuildIndexes(client, 'table', filling.table);
    });
  await timed('numbers and sums', async () => {
    for (const statement of countFleet) await client.query(statement);
    for (const table of countedTables) await rebuildIndexes(client, 'table', table);
  });
  await client.query('COMMIT');
}

/** Makes points in one thread and writes the cold ones to files in another. */
async function fillPoints(
  { superuserUrl, databaseUrl, coldFolder }: InstallationAddress,
  sizes: Sizes,
  progress: (done: number) => void,
): Promise<void> {
  const { port1, port2 } = new MessageChannel();
  const owner = new URL(databaseUrl).username;
  const points: PointsThreadData = { port: port1, superuserUrl, owner, sizes };
  const cold: ColdThreadData = { port: port2, folder: coldFolder, superuserUrl };
  await Promise.all([
    runThread('points-thread.ts', points, port1, progress),
    runThread('cold-thread.ts', cold, port2, progress),
  ]);
}

/** Runs a thread until it says that it is done. Throws if it ends before. */
function runThread(
  file: string,
  data: PointsThreadData | ColdThreadData,
  port: MessagePort,
  progress: (done: number) => void,
): Promise<void> {
  const thread = new Worker(new URL(file, import.meta.url), { workerData: data, transferList: [port] });
  return new Promise((resolve, reject) => {
    thread.on('message', (message: number | 'done') => (message === 'done' ? resolve() : progress(message)));
    thread.on('error', reject);
    thread.on('exit', () => reject(new Error(`the thread ${file} has ended too early`)));
  });
}

// Fills an empty installation with a year of data.
import { statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { pathToFileURL } from 'node:url';
import pg from 'pg';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { FolderStore } from '../../../apiserver/src/platform/object-store/folder-store.ts';
import { createLogger, type Logger } from '../../../apiserver/src/platform/observability/logger.ts';
import { createMetrics } from '../../../apiserver/src/platform/observability/metrics.ts';
import { ColdFiles } from '../../../apiserver/src/telemetry/cold/cold-files.ts';
import { doColdWork } from '../../../apiserver/src/telemetry/cold/cold-work.ts';
import { mergeNextRuns, packLeaves, unpackNextTable } from '../../../apiserver/src/telemetry/leaves/packing.ts';
import { indexNextSegment } from '../../../apiserver/src/telemetry/write/segments.ts';
import { fillAuditLog, fillOutbox } from './events.ts';
import { countFleet, deviceNumbers, fleetFillings, idFunctions } from './fleet.ts';
import { countLeaves, hotDays, PointFilling } from './points.ts';
import type { Sizes } from './sizes.ts';
import { traceFillings } from './traces.ts';

/** Where to fill: an empty database, as its owner and as a superuser. */
export interface InstallationAddress {
  readonly databaseUrl: string;
  readonly superuserUrl: string;
  /** For the cold files, which must be readable by the apiserver. */
  readonly coldFolder: string;
}

/** Settings of an apiserver on a populated installation: its cold files, and no others. */
export const coldSettings = ({ coldFolder }: Pick<InstallationAddress, 'coldFolder'>): Record<string, string> => ({
  KELLET_COLD_URL: pathToFileURL(coldFolder).href,
  KELLET_HOT_HOURS: String(hotDays * 24),
});

/** Turns the points cold that are older than the hot ones. */
async function turnCold(database: Database, logger: Logger, coldFolder: string): Promise<void> {
  const store = new FolderStore(pathToFileURL(coldFolder));
  const files = new ColdFiles(store, { logger, metrics: createMetrics() });
  await doColdWork({ database, logger, store, files, hotSeconds: hotDays * 86_400 }, new AbortController().signal);
}

/** Returns when work will end that began then and of which so much is done, as far as that can be told. */
function remaining(started: number, done: number): string {
  if (done === 0) return '';
  const milliseconds = ((performance.now() - started) * (1 - done)) / done;
  return `, until about ${new Date(Date.now() + milliseconds).toISOString().slice(11, 19)} UTC`;
}

/** What a device and a batch of the year take on the disk, with their points, indexes and WAL, roughly. */
const bytesOf = { device: 4000, batch: 2700, coldPoint: 170, hotPoint: 700 };
/** Of the disk that is left free. */
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
  const logger = createLogger('warn');
  const database = new Database(address.databaseUrl, logger);
  await migrate(database, logger);
  const client = new pg.Client({ connectionString: address.superuserUrl });
  await client.connect();
  const timed = async (what: string, work: () => Promise<unknown>) => {
    const started = performance.now();
    await work();
    report(`${what}: ${((performance.now() - started) / 1000).toFixed(1)} s`);
  };
  try {
    // Neither triggers nor foreign keys: the rows are consistent by construction. What triggers add is added below.
    await client.query(`SET session_replication_role = replica; SET synchronous_commit = off; SET work_mem = '256MB'`);
    await client.query(idFunctions);
    await timed('devices', () => client.query(deviceNumbers(sizes)));
    for (const { table, columns, rows } of [...fleetFillings(sizes), ...traceFillings(sizes)]) {
      await timed(table, () =>
        client.query(`INSERT INTO ${table} (${columns}) ${rows}`).catch((error: unknown) => {
          throw new Error(`${table} cannot be filled`, { cause: error });
        }),
      );
    }
    await timed('audit log', () => fillAuditLog(client, sizes));
    await timed('outbox', () => fillOutbox(client, sizes));
    for (const statement of countFleet) await timed('counts of devices', () => client.query(statement));
    const openSegment = async (writerId: string) => {
      const opening = 'SELECT telemetry_open_hot_segment($1) AS id';
      const { rows } = await database.system((tx) => tx.query<{ id: bigint }>(opening, [writerId]));
      return rows[0]!.id;
    };
    const points = new PointFilling(client, sizes, openSegment);
    const started = performance.now();
    await timed('points, batches and transactions', () =>
      points.run((done) => report(`points: ${(done * 100).toFixed(0)} %${remaining(started, done)}`)),
    );
    await timed('counts of leaves', () => client.query(countLeaves));
    await client.query('DROP SCHEMA year CASCADE');
    await timed('indexes of segments', async () => {
      while (await indexNextSegment(database));
    });
    await timed('cold files', () => turnCold(database, logger, address.coldFolder));
    await timed('packed leaves', async () => {
      while ((await packLeaves(database)) || (await unpackNextTable(database)));
      while (await mergeNextRuns(database));
    });
    await timed('statistics', () => client.query('VACUUM ANALYZE'));
  } finally {
    await client.end();
    await database.close();
  }
}

// Fills an empty installation with a year of data.
import pg from 'pg';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { indexNextSegment } from '../../../apiserver/src/telemetry/write/segments.ts';
import { countFleet, deviceNumbers, fleetFillings, idFunctions } from './fleet.ts';
import { PointFilling } from './points.ts';
import type { Sizes } from './sizes.ts';
import { traceFillings } from './traces.ts';

/** Where to fill: an empty database, as its owner and as a superuser. */
export interface InstallationAddress {
  readonly databaseUrl: string;
  readonly superuserUrl: string;
}

/** Migrates a database and fills it. */
export async function fillInstallation(
  address: InstallationAddress,
  sizes: Sizes,
  report: (line: string) => void,
): Promise<void> {
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
    for (const statement of countFleet) await timed('counts of devices', () => client.query(statement));
    const openSegment = async (writerId: string) => {
      const opening = 'SELECT telemetry_open_hot_segment($1) AS id';
      const { rows } = await database.system((tx) => tx.query<{ id: bigint }>(opening, [writerId]));
      return rows[0]!.id;
    };
    const points = new PointFilling(client, sizes, openSegment);
    await timed('points, batches and transactions', () =>
      points.run((done) => report(`points: ${(done * 100).toFixed(0)} %`)),
    );
    await client.query('DROP SCHEMA year CASCADE');
    await timed('indexes of segments', async () => {
      while (await indexNextSegment(database));
    });
    await timed('statistics', () => client.query('VACUUM ANALYZE'));
  } finally {
    await client.end();
    await database.close();
  }
}

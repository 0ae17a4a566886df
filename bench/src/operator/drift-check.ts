// drift-check: CPU time of the apiserver's part and of PostgreSQL for one page of the drift check, in installations of several sizes,
// compared with reading all working copies.
//
//   KELLET_BENCH_RESOURCES   numbers of working copies (10000,100000)
import pg from 'pg';
import { listWorkingCopies } from '../../../apiserver/src/control/working-copies.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { driftPageSize } from '../../../operator/src/drift-repair.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startDatabase } from '../environment.ts';
import { describeRound, resultOf, type Round, type Suite } from '../harness.ts';

const sizes = (process.env['KELLET_BENCH_RESOURCES'] ?? '10000,100000').split(',').map(Number);
const rounds = 3;
const pagesPerRound = 20;
const tenants = 100;

/** The suite. */
export const driftCheck: Suite = {
  name: 'drift-check',
  run: async (report) => {
    const { databaseUrl, superuserUrl, supervisor, close } = await startDatabase(report);
    const database = new Database(databaseUrl, createLogger('fatal'), { maximumConnections: 2 });
    const postgres = supervisor.pids()['postgres']!;
    try {
      await migrate(database, createLogger('fatal'));
      const results = [];
      let copies = 0;
      for (const size of sizes) {
        await fill(superuserUrl, copies, size);
        copies = size;
        const figure = { name: `drift-check-${size}`, unit: 'ms of CPU', baseline: 'all copies' };
        const measured: Round[] = [];
        for (let number = 1; number <= rounds; number += 1) {
          const page = await costOf(postgres, () => readPages(database));
          const all = await costOf(postgres, () => read(database, 0, ''));
          const round: Round = {
            ours: page.milliseconds / pagesPerRound,
            baseline: all.milliseconds,
            remarks: {
              'ms of PostgreSQL': page.postgres / pagesPerRound,
              'MB of the process': process.memoryUsage().rss / 2 ** 20,
            },
          };
          measured.push(round);
          report(`${figure.name}: round ${number}/${rounds}: ${describeRound(figure, round)}`);
        }
        results.push(resultOf(figure, measured));
      }
      return results;
    } finally {
      await database.close();
      await close();
    }
  },
};

/** Reads a page. Returns the token of the next one. */
async function read(database: Database, pageSize: number, pageToken: string): Promise<string> {
  let next = '';
  for await (const message of listWorkingCopies(database, { pageSize, pageToken }, new AbortController().signal))
    next = message.nextPageToken!;
  return next;
}

/** Reads pages one after the other, from the beginning again after the last. */
async function readPages(database: Database): Promise<void> {
  for (let [page, token] = [0, '']; page < pagesPerRound; page += 1) token = await read(database, driftPageSize, token);
}

async function costOf(postgres: number, work: () => Promise<unknown>) {
  const before = { postgres: cpuMicroseconds(postgres), process: process.cpuUsage() };
  await work();
  const { user, system } = process.cpuUsage(before.process);
  const ofPostgres = (cpuMicroseconds(postgres) - before.postgres) / 1000;
  return { postgres: ofPostgres, milliseconds: ofPostgres + (user + system) / 1000 };
}

/** Adds profiles and rollouts, as many of each, and three times as many completed rollouts. */
async function fill(superuserUrl: string, from: number, to: number): Promise<void> {
  const superuser = new pg.Client({ connectionString: superuserUrl });
  await superuser.connect();
  const tenant = `'tenant-' || n % ${tenants}`;
  const statements = [
    `INSERT INTO tenants (tenant_id, name, namespace) SELECT ${tenant}, 'T', ${tenant} FROM generate_series(1, ${tenants}) AS n
     ON CONFLICT DO NOTHING`,
    `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
     SELECT ${tenant}, gen_random_uuid(), ${tenant}, 'profile-' || n, 'Profile', jsonb_build_object('type', n)
     FROM generate_series($1::int4 / 2, $2::int4 / 2 - 1) AS n`,
    `INSERT INTO ota_rollouts (tenant_id, rollout_id, namespace, name, display_name, package_id, profile_id, spec, phase)
     SELECT ${tenant}, gen_random_uuid(), ${tenant}, 'rollout-' || n, 'Rollout', gen_random_uuid(), gen_random_uuid(),
       '{"canaryPercent": 10}', CASE WHEN n < $2::int4 / 2 THEN 'active' ELSE 'completed' END
     FROM generate_series($1::int4 / 2, $2::int4 * 2 - 1) AS n`,
  ];
  try {
    for (const [index, text] of statements.entries()) await superuser.query(text, index === 0 ? [] : [from, to]);
    await superuser.query('ANALYZE');
  } finally {
    await superuser.end();
  }
}

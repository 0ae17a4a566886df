// `make day`: lives a day, ten times as fast, in an installation with a year of data, and checks that nothing is kept for longer than
// the settings say.
//
//   SCALE=0.004 SPEED=10 HOURS=24 node bench/src/year/day.ts
//
// The clocks of PostgreSQL and of the apiserver run SPEED times as fast: more than 20 times makes requests time out. Meanwhile devices
// send points with an Idempotency-Key, get commands that nobody takes, and users sign in. Prints the size of each table before and
// after, the limits with what is beyond them, and the memory of the apiserver. Exit code 1 if anything is beyond its limit.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { hashPassword } from '../../../apiserver/src/auth/accounts/passwords.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { hurry, replaceClock } from './database-clock.ts';
import { coldSettings, fillInstallation } from './installation.ts';
import { retentionLimits, retentionSettings } from './retention-limits.ts';
import { sizesOf } from './sizes.ts';

const scale = Number(process.env['SCALE'] ?? 0.004);
const speed = Number(process.env['SPEED'] ?? 10);
const hours = Number(process.env['HOURS'] ?? 24);
/** Between two sweeps, and for what they find to be deleted, in simulated hours. */
const sweepHours = 3;
const password = 'correct horse battery staple';
const report = (line: string) => console.error(line);

interface TableSize {
  readonly name: string;
  readonly rows: number;
  readonly bytes: number;
}

/** Returns the tables with the largest first; those of segments as one. */
async function tableSizes(client: pg.Client): Promise<TableSize[]> {
  const { rows } = await client.query<{ name: string; live: string; bytes: string }>(
    `SELECT regexp_replace(relname, '_[0-9]+$', '_N') AS name, sum(n_live_tup) AS live, sum(pg_total_relation_size(relid)) AS bytes
     FROM pg_stat_user_tables WHERE schemaname = 'public' GROUP BY 1 ORDER BY 3 DESC`,
  );
  return rows.map(({ name, live, bytes }) => ({ name, rows: Number(live), bytes: Number(bytes) }));
}

/** Returns the resident memory of a process in megabytes. */
const memoryOf = (pid: number): number =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))![1]) / 1024;

/** Makes calls until it is aborted. Returns how many succeeded and failed. */
async function live(environment: Environment, now: () => number, signal: AbortSignal) {
  const base = `http://${environment.rest.host}:${environment.rest.port}/api/v1`;
  const counts = { succeeded: 0, failed: 0 };
  const send = async (path: string, body: unknown, headers: Readonly<Record<string, string>> = {}) => {
    const response = await fetch(`${base}${path}`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'X-API-Key': environment.apiKey, ...headers },
      body: JSON.stringify(body),
    }).catch(() => undefined);
    await response?.arrayBuffer();
    counts[response?.ok ? 'succeeded' : 'failed'] += 1;
  };
  for (let n = 0; !signal.aborted; n += 1) {
    const device = environment.deviceIds[n % environment.deviceIds.length]!;
    const point = { device_id: device, timestamp: new Date(now()).toISOString(), numeric_values: { n } };
    await send('/telemetry', { points: [point] }, { 'Idempotency-Key': newId() });
    if (n % 5 === 0)
      await send(`/devices/${device}/rpc`, { method: 'reboot', params: {}, persistent: true, expires_in_seconds: 600 });
    if (n % 20 === 0)
      await send('/auth/login', { tenant_id: environment.tenantId, email: 'day@example.com', password });
    await sleep(100, undefined, { signal }).catch(() => undefined);
  }
  return counts;
}

let epoch = 0;
const environment = await startEnvironment(report, 1000, {
  fill: async (address) => {
    await replaceClock(address.superuserUrl);
    await fillInstallation(address, sizesOf(scale), report);
    epoch = Date.now();
    await hurry(address.superuserUrl, epoch, speed);
    return {
      ...coldSettings(address),
      ...retentionSettings,
      ...{ DAY_EPOCH: String(epoch), DAY_SPEED: String(speed) },
      NODE_OPTIONS: `--import ${join(import.meta.dirname, 'fast-clock.ts')}`,
    };
  },
});
const client = new pg.Client({ connectionString: environment.databaseUrl });
await client.connect();
try {
  await client.query(
    `INSERT INTO users (user_id, tenant_id, email, name, role, password_hash) VALUES ($1, $2, 'day@example.com', 'Day', 'viewer', $3)`,
    [newId(), environment.tenantId, await hashPassword(password)],
  );
  const before = new Map((await tableSizes(client)).map((table) => [table.name, table]));
  const memoryBefore = memoryOf(environment.pids['apiserver']!);
  const ending = new AbortController();
  const now = () => Math.floor(epoch + (Date.now() - epoch) * speed);
  const living = live(environment, now, ending.signal);
  await sleep((hours * 3_600_000) / speed);
  ending.abort();
  const { succeeded, failed } = await living;
  await client.query('ANALYZE');
  console.log('| table | rows before | rows after | MB before | MB after |\n|---|---|---|---|---|');
  for (const { name, rows, bytes } of await tableSizes(client)) {
    const earlier = before.get(name);
    const megabytes = (count: number) => (count / 1e6).toFixed(1);
    if (bytes > 1e6 || (earlier?.bytes ?? 0) > 1e6)
      console.log(
        `| ${name} | ${earlier?.rows ?? 0} | ${rows} | ${megabytes(earlier?.bytes ?? 0)} | ${megabytes(bytes)} |`,
      );
  }
  console.log('\n| table | by | setting | hours | oldest, hours | rows beyond |\n|---|---|---|---|---|---|');
  let beyond = 0;
  for (const { table, column, hours: kept, where = 'true', setting } of retentionLimits) {
    const { rows } = await client.query<{ oldest: number | null; beyond: number }>(
      `SELECT extract(epoch FROM now() - min(${column}))::float8 / 3600 AS oldest,
         count(*) FILTER (WHERE ${column} < now() - make_interval(hours => $1))::int4 AS beyond
       FROM ${table} WHERE ${where}`,
      [kept + sweepHours],
    );
    const [found] = rows;
    beyond += found!.beyond;
    console.log(
      `| ${table} | ${column} | ${setting} | ${kept} | ${found!.oldest?.toFixed(1) ?? ''} | ${found!.beyond} |`,
    );
  }
  const memory = memoryOf(environment.pids['apiserver']!);
  console.log(`\nmemory of the apiserver, MB: ${memoryBefore.toFixed(0)} before, ${memory.toFixed(0)} after`);
  console.log(`${succeeded} calls succeeded, ${failed} failed; ${beyond} rows beyond their limits`);
  if (beyond > 0 || succeeded === 0 || failed > succeeded / 10) process.exitCode = 1;
} finally {
  await client.end();
  await environment.close();
}

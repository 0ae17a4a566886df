// `make year`: fills an installation with a year of data, then measures ordinary calls there and in a small one, alternately: how long
// they take, and the CPU time of apiserver and PostgreSQL for them when eight are made at once. Calls that only read are made once before
// they are measured, so that both installations have in memory what they read; the last column compares these first calls.
//
//   SCALE=0.01 ROUNDS=20 IDLE_SECONDS=60 REST_SECONDS=600 node bench/src/year/year.ts
//
// ONLY is a pattern of the names in the table (`operations` for what is not a single request). Batches are anchored on the local chain,
// which continues the headers of the year.
// Prints the table of docs/performance.md, and writes it to .kellet/year.md. First runs fsck on a sample of the tenants.
import { mkdir, writeFile } from 'node:fs/promises';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { median } from '../harness.ts';
import { checkSample } from './check-sample.ts';
import { openFailOver } from './fail-over.ts';
import { coldSettings, fillInstallation } from './installation.ts';
import { callOnce, measurements, openTenant, type TenantAccess } from './measurements.ts';
import { openOperations, type Operations } from './operations.ts';
import { timeOfStart } from './processes.ts';
import { type Sizes, sizesOf, smallSizes } from './sizes.ts';

const scale = Number(process.env['SCALE'] ?? 1);
const rounds = Number(process.env['ROUNDS'] ?? 20);
/** Of as many calls as there are rounds, in each house by turns. */
const blocks = 3;
/** Callers at once while CPU time is measured. */
const atOnce = 8;
const settleSeconds = 30;
/** PostgreSQL looks for tables to vacuum every minute, so a longer time without a worker means that there are none. */
const restSeconds = 75;
const mostRestSeconds = Number(process.env['REST_SECONDS'] ?? 600);
/** Newest points and signs of life are written up to half a minute after points. */
const heldSeconds = 45;
/** Pattern of the names of what is measured. */
const only = new RegExp(process.env['ONLY'] ?? '');
/** A process rests for 50 ms after each collection of its metrics, and a scrape that comes sooner waits. */
const scrapeRestMilliseconds = 60;
const idleSeconds = Number(process.env['IDLE_SECONDS'] ?? 60);
const sizes = sizesOf(scale);
const folder = join(import.meta.dirname, '../../../.kellet');
const started = performance.now();
const report = (line: string) => console.error(`${((performance.now() - started) / 60_000).toFixed(1)} min: ${line}`);
const table: string[] = [];
const print = (line: string): void => {
  console.log(line);
  table.push(line);
};

/** Returns the duration of one request to the process, in milliseconds. */
async function timeOf(url: string): Promise<number> {
  const started = performance.now();
  await (await fetch(url)).arrayBuffer();
  return performance.now() - started;
}

const nameOfFailOver = 'fail-over of the operator';
const patienceMilliseconds = 60_000;

/** Sends a point and waits until its batch is proven. Returns the duration in milliseconds. */
async function timeToProof(access: TenantAccess, n: number): Promise<number> {
  const client = new pg.Client({ connectionString: access.databaseUrl });
  await client.connect();
  try {
    const { rows } = await client.query<{ now: Date }>('SELECT clock_timestamp() AS now');
    const ingest = measurements.find(({ name }) => name === 'ingest of one point')!;
    const started = performance.now();
    const [, status] = await callOnce(ingest, access, n);
    if (status !== 200) throw new Error(`ingest: ${status}`);
    for (;;) {
      const proven = await client.query(
        `SELECT FROM anchor_batches WHERE tenant_id = 'tenant-1' AND created_at >= $1 AND status = 'confirmed' LIMIT 1`,
        [rows[0]!.now],
      );
      const milliseconds = performance.now() - started;
      if (proven.rowCount) return milliseconds;
      if (milliseconds > patienceMilliseconds) throw new Error('a new batch is not proven');
      await sleep(20);
    }
  } finally {
    await client.end();
  }
}

/** Waits until PostgreSQL has vacuumed and analysed what the fill has left, or for so long as is allowed. */
async function vacuumed({ databaseUrl }: TenantAccess): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const started = performance.now();
    for (let last = started; performance.now() - last < restSeconds * 1000; await sleep(1000)) {
      const { rowCount } = await client.query(
        `SELECT FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' LIMIT 1`,
      );
      if (!rowCount) continue;
      last = performance.now();
      if (last - started > mostRestSeconds * 1000) {
        report('PostgreSQL still vacuums what the fill has left');
        return;
      }
    }
  } finally {
    await client.end();
  }
}

/** CPU time of the apiserver and of PostgreSQL, in milliseconds. */
const cpuOf = ({ pids }: Environment): number =>
  (cpuMicroseconds(pids['apiserver']!) + cpuMicroseconds(pids['postgres']!)) / 1000;

/** Starts an installation with so many rows. */
const startFilled = (rows: Sizes): Promise<Environment> =>
  startEnvironment(report, 1000, {
    chain: true,
    // So that batches are anchored while calls are measured.
    settings: { KELLET_BATCH_SECONDS: '2' },
    fill: async (address) => {
      await fillInstallation(address, rows, report);
      return coldSettings(address);
    },
  });

const small = await startFilled(smallSizes);
try {
  const full = await startFilled(sizes);
  try {
    if (!(await checkSample(full.settings, sizes, report))) throw new Error('the populated installation is not sound');
    const houses = [small, full] as const;
    const accesses = await Promise.all(houses.map((environment) => openTenant(environment, 'tenant-1')));
    // What follows a start or the fill is not idle.
    await sleep(settleSeconds * 1000);
    for (const access of accesses) await vacuumed(access);
    report('the installations are at rest');
    print(
      `| call | small, ms | full, ms | ratio | small, ms of CPU | full, ms of CPU | ratio | of first calls |\n|${'---|'.repeat(8)}`,
    );
    const ratio = ([first, second]: readonly number[]) => (second! / first!).toFixed(2);
    const cells = (both: readonly number[]) => `${both.map((one) => one.toFixed(1)).join(' | ')} | ${ratio(both)}`;
    const line = (name: string, times: readonly number[], cpu?: readonly number[], first?: readonly number[]) =>
      print(`| ${name} | ${cells(times)} | ${cpu ? cells(cpu) : '| |'} | ${first ? ratio(first) : ''} |`);
    for (const measurement of measurements.filter(({ name }) => only.test(name))) {
      const times: [number[], number[]] = [[], []];
      const cpu: [number, number] = [0, 0];
      const statuses = new Set<string>();
      const callAll = async (index: 0 | 1, first: number, count: number): Promise<number[]> => {
        const found: number[] = [];
        for (let n = first; n < first + count; n += 1) {
          const [milliseconds, status] = await callOnce(measurement, accesses[index]!, n);
          found.push(milliseconds);
          statuses.add(`${['small', 'full'][index]} ${status}`);
        }
        return found;
      };
      // The first calls plan statements and fill caches.
      for (const index of [0, 1] as const) await callAll(index, 0, 5);
      const firstTimes: [number[], number[]] = [[], []];
      if (!measurement.body)
        for (const index of [0, 1] as const)
          firstTimes[index].push(...(await callAll(index, 5, blocks * rounds * (1 + atOnce))));
      for (let block = 0; block < blocks; block += 1) {
        for (const index of [0, 1] as const) {
          const first = 5 + block * rounds * (1 + atOnce);
          times[index].push(...(await callAll(index, first, rounds)));
          // Many at once, so that what both do meanwhile by themselves counts little.
          const busy = cpuOf(houses[index]);
          const callers = Array.from({ length: atOnce }, (_, caller) =>
            callAll(index, first + rounds * (1 + caller), rounds),
          );
          await Promise.all(callers);
          cpu[index] += (cpuOf(houses[index]) - busy) / (rounds * atOnce) / blocks;
        }
      }
      // A hash that is not known is not found.
      const isExpected = (status: string) => / (2\d\d|404)$/.test(status);
      if (![...statuses].every(isExpected)) throw new Error(`${measurement.name}: ${[...statuses].join(', ')}`);
      line(measurement.name, times.map(median), cpu, measurement.body ? undefined : firstTimes.map(median));
      // What is written after points is no part of the calls that follow.
      if (measurement.name.startsWith('ingest')) await sleep(heldSeconds * 1000);
    }
    const times = new Map<string, [number[], number[]]>();
    const operations: Operations[] = [];
    const operationRounds = only.test('operations') ? rounds + 2 : 0;
    try {
      for (const environment of operationRounds > 0 ? houses : [])
        operations.push(await openOperations(environment, 'tenant-1'));
      for (let n = 0; n < operationRounds; n += 1) {
        for (const [index, operation] of operations.entries()) {
          for (const [name, milliseconds] of await operation.run(n)) {
            const both = times.get(name) ?? [[], []];
            times.set(name, both);
            if (n >= 2) both[index]!.push(milliseconds);
          }
        }
      }
    } catch (error) {
      // Before the houses are closed, which ends their connections with another error.
      report(String(error));
      throw error;
    } finally {
      for (const operation of operations) await operation.close();
    }
    for (const [name, both] of times) line(name, both.map(median));
    const measure = async (name: string, times: number, run: (house: 0 | 1, n: number) => Promise<number>) => {
      if (!only.test(name)) return;
      const both: [number[], number[]] = [[], []];
      try {
        for (let n = 0; n < times; n += 1) for (const house of [0, 1] as const) both[house].push(await run(house, n));
        line(name, both.map(median));
      } catch (error) {
        // The rest of the table took long to get here.
        report(`${name}: ${String(error)}`);
        print(`| ${name} | failed | | | | | | |`);
        process.exitCode = 1;
      }
    };
    await measure('start of an apiserver', 3, (house) => timeOfStart(houses[house]));
    if (only.test(nameOfFailOver)) {
      const failOver = await openFailOver(report);
      try {
        const looks: [number[], number[]] = [[], []];
        await measure(nameOfFailOver, 3, async (house) => {
          const { total, look } = await failOver.time(houses[house]);
          looks[house].push(look);
          return total;
        });
        line('the first look of the operator that has taken over', looks.map(median));
      } finally {
        await failOver.close();
      }
    }
    await measure('a new batch, until it is proven', rounds, (house, n) => timeToProof(accesses[house]!, n));
    await measure('scrape of metrics', 2 * rounds, async (house) => {
      await sleep(scrapeRestMilliseconds);
      return timeOf(houses[house].metrics);
    });
    // At the end, because what the fill has left to do takes longer than its vacuum.
    await sleep(heldSeconds * 1000);
    const before = houses.map(cpuOf);
    await sleep(idleSeconds * 1000);
    const idle = houses.map((environment, index) => (cpuOf(environment) - before[index]!) / idleSeconds);
    print(`| the idle apiserver and PostgreSQL, a second | | | | ${cells(idle)} | |`);
    const minutes = ((performance.now() - started) / 60_000).toFixed(1);
    print(`\n${JSON.stringify({ scale, rounds, minutes, load: loadavg(), ...sizes })}`);
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'year.md'), `${table.join('\n')}\n`);
  } finally {
    await full.close();
  }
} finally {
  await small.close();
}

// `make year`: fills an installation with a year of data, then measures ordinary calls there and in an empty one, alternately.
//
//   SCALE=0.01 ROUNDS=40 IDLE_SECONDS=60 node bench/src/year/year.ts
//
// Prints the table of docs/performance.md. First runs fsck on a sample of the tenants.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { median } from '../harness.ts';
import { checkSample } from './check-sample.ts';
import { coldSettings, fillInstallation } from './installation.ts';
import { callOnce, measurements, openTenant, type TenantAccess } from './measurements.ts';
import { openOperations } from './operations.ts';
import { timeOfStart } from './processes.ts';
import { sizesOf } from './sizes.ts';

const scale = Number(process.env['SCALE'] ?? 1);
const rounds = Number(process.env['ROUNDS'] ?? 40);
const idleSeconds = Number(process.env['IDLE_SECONDS'] ?? 60);
const sizes = sizesOf(scale);
const report = (line: string) => console.error(line);

/** Returns the duration of one request to the process, in milliseconds. */
async function timeOf(url: string): Promise<number> {
  const started = performance.now();
  await (await fetch(url)).arrayBuffer();
  return performance.now() - started;
}

const empty = await startEnvironment(report, 1000);
try {
  const full = await startEnvironment(report, 1000, {
    fill: async (address) => {
      await fillInstallation(address, sizes, report);
      return coldSettings(address);
    },
  });
  try {
    if (!(await checkSample(full.settings, sizes, report))) throw new Error('the populated installation is not sound');
    const accesses: readonly [TenantAccess, TenantAccess] = [
      await openTenant(empty, empty.tenantId),
      await openTenant(full, 'tenant-1'),
    ];
    const idle = [empty, full].map(({ pids }) => pids['apiserver']!);
    const before = idle.map(cpuMicroseconds);
    await new Promise((resolve) => setTimeout(resolve, idleSeconds * 1000));
    const idleMilliseconds = idle.map((pid, index) => (cpuMicroseconds(pid) - before[index]!) / 1000 / idleSeconds);
    console.log(`| call | empty, ms | full, ms | ratio |\n|---|---|---|---|`);
    const line = (name: string, [first, second]: readonly number[]) =>
      console.log(`| ${name} | ${first!.toFixed(1)} | ${second!.toFixed(1)} | ${(second! / first!).toFixed(2)} |`);
    for (const measurement of measurements) {
      const times: [number[], number[]] = [[], []];
      const statuses = new Set<string>();
      for (let n = 0; n < rounds + 5; n += 1) {
        for (const [index, access] of accesses.entries()) {
          const [milliseconds, status] = await callOnce(measurement, access, n);
          // The first calls plan statements and fill caches.
          if (n >= 5) times[index]!.push(milliseconds);
          statuses.add(`${['empty', 'full'][index]} ${status}`);
        }
      }
      // A hash that is not known is not found, and the empty installation knows none.
      const isExpected = (status: string) => / (2\d\d|404)$/.test(status);
      if (![...statuses].every(isExpected)) throw new Error(`${measurement.name}: ${[...statuses].join(', ')}`);
      line(measurement.name, times.map(median));
    }
    const operations = [await openOperations(empty, empty.tenantId), await openOperations(full, 'tenant-1')];
    const times = new Map<string, [number[], number[]]>();
    for (let n = 0; n < rounds + 2; n += 1) {
      for (const [index, operation] of operations.entries()) {
        for (const [name, milliseconds] of await operation.run(n)) {
          const both = times.get(name) ?? [[], []];
          times.set(name, both);
          if (n >= 2) both[index]!.push(milliseconds);
        }
      }
    }
    for (const operation of operations) await operation.close();
    for (const [name, both] of times) line(name, both.map(median));
    const starts: [number[], number[]] = [[], []];
    for (let n = 0; n < 3; n += 1) {
      for (const [index, environment] of [empty, full].entries()) starts[index]!.push(await timeOfStart(environment));
    }
    line('start of an apiserver', starts.map(median));
    const scrapes: [number[], number[]] = [[], []];
    for (let n = 0; n < 10; n += 1) {
      for (const [index, { metrics }] of [empty, full].entries()) scrapes[index]!.push(await timeOf(metrics));
    }
    line('scrape of metrics', scrapes.map(median));
    line('CPU of the idle apiserver, ms a second', idleMilliseconds);
    console.log(`\n${JSON.stringify({ scale, ...sizes })}`);
  } finally {
    await full.close();
  }
} finally {
  await empty.close();
}

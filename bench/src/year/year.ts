// `make year`: fills an installation with a year of data, then measures ordinary calls there and in an empty one, alternately.
//
//   SCALE=0.01 ROUNDS=40 node bench/src/year/year.ts
//
// Prints the table of docs/performance.md. First runs fsck on a sample of the tenants.
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { median } from '../harness.ts';
import { coldSettings, fillInstallation } from './installation.ts';
import { callOnce, measurements, openTenant, type TenantAccess } from './measurements.ts';
import { sizesOf } from './sizes.ts';

const scale = Number(process.env['SCALE'] ?? 1);
const rounds = Number(process.env['ROUNDS'] ?? 40);
const sizes = sizesOf(scale);
const report = (line: string) => console.error(line);

async function checkSample(environment: Readonly<Record<string, string>>): Promise<void> {
  const main = join(import.meta.dirname, '../../../apiserver/src/main.ts');
  for (const tenant of ['tenant-2', `tenant-${sizes.tenants}`]) {
    const options = { env: { ...process.env, ...environment }, maxBuffer: 1 << 26 };
    const command = promisify(execFile)(process.execPath, [main, 'fsck', '--json', '--tenant', tenant], options);
    const { stdout } = await command.catch((error: unknown) => error as { stdout: string });
    const { broken } = JSON.parse(stdout) as { broken: { kind: string }[] };
    // The events of the audit logs have no real hashes: rows are all that is measured.
    const others = broken.filter(({ kind }) => kind !== 'audit_event');
    if (others.length > 0) throw new Error(`fsck of ${tenant}: ${JSON.stringify(others.slice(0, 5))}`);
    report(`fsck of ${tenant}: clean`);
  }
}

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
    await checkSample(full.settings);
    const accesses: readonly [TenantAccess, TenantAccess] = [
      await openTenant(empty, empty.tenantId),
      await openTenant(full, 'tenant-1'),
    ];
    const idle = [empty, full].map(({ pids }) => pids['apiserver']!);
    const before = idle.map(cpuMicroseconds);
    await new Promise((resolve) => setTimeout(resolve, 20_000));
    const idleMilliseconds = idle.map((pid, index) => (cpuMicroseconds(pid) - before[index]!) / 1000 / 20);
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
      if ([...statuses].some((status) => !/ 2\d\d$/.test(status)))
        report(`${measurement.name}: ${[...statuses].join(', ')}`);
      line(measurement.name, times.map(median));
    }
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

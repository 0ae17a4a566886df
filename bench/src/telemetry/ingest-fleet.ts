// ingest-fleet: what a point costs when each is of another device, for fleets of several sizes, in turn in the same run. The cost
// must not grow with the fleet, so the baseline is the smallest.
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { type Result, resultOf, type Round, type Suite } from '../harness.ts';
import { pointsPerRequest } from '../samples/request-bodies.ts';
import { IngestLoad } from './ingest-load.ts';

/** Devices of each fleet; a million needs 2 GB of memory and minutes to prepare. */
const fleets = (process.env['KELLET_BENCH_FLEETS'] ?? '1000,100000').split(',').map(Number);
/** The default of the setting, and what a process needs for each device that it knows. */
const leastCacheBytes = 209_715_200;
const bytesOfDevice = 1600;
const rounds = Number(process.env['KELLET_BENCH_ROUNDS'] ?? 3);

/** The suite. */
export const ingestFleet: Suite = {
  name: 'ingest-fleet',
  run: async (report) => {
    const environments: Environment[] = [];
    try {
      const loads: IngestLoad[] = [];
      for (const devices of fleets) {
        const settings = { KELLET_DEVICE_CACHE_BYTES: String(Math.max(leastCacheBytes, devices * bytesOfDevice)) };
        const environment = await startEnvironment(report, devices, { settings });
        environments.push(environment);
        loads.push(await IngestLoad.open(environment));
      }
      // The first point of a device costs more: the device and its latest values are read.
      for (const [index, load] of loads.entries()) {
        for (let sent = 0; sent < fleets[index]!; sent += load.replies * pointsPerRequest) await load.run();
      }
      // Devices that went online are written, with an event of each.
      for (const environment of environments) await idle(environment);
      const measured: Round[][] = fleets.map(() => []);
      for (let number = 0; number < rounds; number += 1) {
        const costs: number[] = [];
        for (const [index, load] of loads.entries()) {
          const perSecond = await load.run();
          const remarks = load.remarks();
          costs.push(remarks['apiserver µs per point']! + remarks['PostgreSQL µs per point']!);
          const round = { ours: costs[index]!, baseline: costs[0]!, remarks: { ...remarks, 'points/s': perSecond } };
          report(`ingest-fleet: ${fleets[index]} devices: ${costs[index]!.toFixed(1)} µs`);
          measured[index]!.push(round);
        }
      }
      for (const load of loads) await load.close();
      return fleets.map((devices, index): Result =>
        resultOf(
          { name: `ingest-fleet: ${devices} devices`, unit: 'µs per point', baseline: `${fleets[0]} devices` },
          measured[index]!,
        ),
      );
    } finally {
      for (const environment of environments) await environment.close();
    }
  },
};

const idleMilliseconds = 2000;
/** Share of a core that an apiserver and its PostgreSQL use at rest, at most. */
const idleShare = 0.15;
const patienceMilliseconds = 120_000;

/** Waits until nothing is left to do, but no longer than two minutes. */
async function idle({ pids }: Environment): Promise<void> {
  const cpu = () => cpuMicroseconds(pids['apiserver']!) + cpuMicroseconds(pids['postgres']!);
  for (const end = performance.now() + patienceMilliseconds; performance.now() < end;) {
    const before = cpu();
    await sleep(idleMilliseconds);
    if (cpu() - before < idleShare * idleMilliseconds * 1000) return;
  }
}

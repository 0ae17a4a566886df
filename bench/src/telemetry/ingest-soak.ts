// ingest-soak: memory of the apiserver under a steady load of points, at the beginning and at the end. It must be flat.
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { startEnvironment } from '../environment.ts';
import { median, type Result, type Suite } from '../harness.ts';
import { IngestLoad } from './ingest-load.ts';

const seconds = Number(process.env['KELLET_BENCH_SOAK_SECONDS'] ?? 60);
/** Share of what the server takes at most. */
const shareOfMaximum = 0.8;
const sampleMilliseconds = 1000;

/** The suite. */
export const ingestSoak: Suite = {
  name: 'ingest-soak',
  run: async (report) => {
    const environment = await startEnvironment(report);
    const sampling = new AbortController();
    try {
      const load = await IngestLoad.open(environment);
      // The first round compiles the code and fills the caches.
      await load.run();
      const perSecond = shareOfMaximum * (await load.run());
      const megabytes: number[] = [];
      const sample = async () => {
        for (; !sampling.signal.aborted; await sleep(sampleMilliseconds)) {
          megabytes.push(await residentMegabytes(environment.pids['apiserver']!));
        }
      };
      const sampled = sample();
      const begun = performance.now();
      while (performance.now() - begun < seconds * 1000) {
        const reached = await load.run(perSecond);
        report(`ingest-soak: ${Math.round(reached)} points/s, ${megabytes.at(-1)?.toFixed(0)} MB`);
      }
      sampling.abort();
      await sampled;
      await load.close();
      const third = Math.ceil(megabytes.length / 3);
      const [first, last] = [median(megabytes.slice(0, third)), median(megabytes.slice(-third))];
      const remarks = { 'at most MB': Math.max(...megabytes), 'points/s': perSecond, seconds };
      const figures = { value: last, baseline_value: first, ratio: last / first, rounds: 1, remarks };
      const result: Result = {
        name: 'ingest-soak',
        unit: 'MB in the last third',
        baseline: 'the first third, MB',
        ...figures,
      };
      return [result];
    } finally {
      sampling.abort();
      await environment.close();
    }
  },
};

/** Returns the resident memory of a process. */
async function residentMegabytes(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)![1]) / 1024;
}

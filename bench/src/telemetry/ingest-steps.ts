// ingest-steps: where the CPU time of a point goes, by step, from a profile of the apiserver under the load of ingest-vs-copy.
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import type { Result, Suite } from '../harness.ts';
import { pointsPerRequest } from '../samples/request-bodies.ts';
import { IngestLoad } from './ingest-load.ts';
import { type CpuProfile, microsecondsByStep } from './steps.ts';

const monotonicMicroseconds = (): number => Number(process.hrtime.bigint() / 1000n);

/** The suite. */
export const ingestSteps: Suite = {
  name: 'ingest-steps',
  run: async (report) => {
    const profileFolder = await mkdtemp(join(tmpdir(), 'kellet-profile-'));
    try {
      const environment = await startEnvironment(report, 1000, { profileFolder });
      let measured: { from: number; to: number; apiserver: number; postgres: number };
      try {
        const load = await IngestLoad.open(environment);
        await load.run();
        const cpu = () => (['apiserver', 'postgres'] as const).map((name) => cpuMicroseconds(environment.pids[name]!));
        const [before, from] = [cpu(), monotonicMicroseconds()];
        await load.run();
        const [after, to] = [cpu(), monotonicMicroseconds()];
        const points = load.replies * pointsPerRequest;
        const [apiserver, postgres] = after.map((time, index) => (time - before[index]!) / points) as [number, number];
        measured = { from, to, apiserver, postgres };
        await load.close();
      } finally {
        // Writes the profile.
        await environment.close();
      }
      const [file] = await readdir(profileFolder);
      const profile = JSON.parse(await readFile(join(profileFolder, file!), 'utf8')) as CpuProfile;
      return resultsOf(microsecondsByStep(profile, measured.from, measured.to), measured);
    } finally {
      await rm(profileFolder, { recursive: true, force: true });
    }
  },
};

/** Divides the measured CPU time among the steps: on a busy machine, samples count time in which the process waited for a core. */
function resultsOf(sampled: ReadonlyMap<string, number>, cost: { apiserver: number; postgres: number }): Result[] {
  const all = [...sampled.values()].reduce((sum, time) => sum + time, 0);
  const total = cost.apiserver + cost.postgres;
  const rows = [...sampled].map(([name, time]) => [name, (time / all) * cost.apiserver] as const);
  return [...rows, ['PostgreSQL', cost.postgres] as const].map(([name, value]) => ({
    ...{ name: `ingest-steps: ${name}`, value, unit: 'µs per point', rounds: 1 },
    ...{ baseline: 'apiserver and PostgreSQL', baseline_value: total, ratio: value / total },
  }));
}

// ingest-vs-copy: durable telemetry ingest over HTTP, 100 points per request in anchor batches, compared with a plain
// binary COPY of the same rows into the same table, in commits of 1,000 rows and in a single one.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import type { Benchmark } from '../harness.ts';
import { copiedRows, copyRows } from './copied-rows.ts';
import { IngestLoad } from './ingest-load.ts';

/** The benchmark. */
export const ingestVsCopy: Benchmark = {
  name: 'ingest-vs-copy',
  unit: 'points/s',
  baseline: 'binary COPY, 1,000 rows a commit',
  rounds: 5,
  prepare: async () => {
    const environment = await startEnvironment((line) => console.error(line));
    const load = await IngestLoad.open(environment);
    const postgres = () => cpuMicroseconds(environment.pids['postgres']!);
    let copyCost = 0;
    return {
      ours: () => load.run(),
      baseline: async () => {
        const before = postgres();
        const perSecond = await copyRows(environment, 1000);
        copyCost = (postgres() - before) / copiedRows;
        return perSecond;
      },
      beside: { 'in one commit': () => copyRows(environment, copiedRows) },
      remarks: () => ({ ...load.remarks(), 'PostgreSQL µs per copied row': copyCost }),
      close: async () => {
        await load.close();
        await environment.close();
      },
    };
  },
};

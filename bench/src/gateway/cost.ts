// What a request costs a server: processor time over a few seconds of load, divided by the answers.
import type { HttpLoad, Load, LoadResult } from './http-load.ts';

/** Microseconds of processor time of each process per answer, and what the load saw. */
export async function costOf(
  generator: HttpLoad,
  load: Load,
  processes: readonly (() => number)[],
): Promise<LoadResult & { microseconds: number[] }> {
  const before = processes.map((cpu) => cpu());
  const result = await generator.run(load);
  const microseconds = processes.map((cpu, index) => (cpu() - before[index]!) / result.answers);
  return { ...result, microseconds };
}

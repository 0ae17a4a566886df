// Measures the cost of a request: CPU time over a few seconds of load, divided by the number of responses.
import type { HttpLoad, Load, LoadResult } from './http-load.ts';

/** CPU time per response of each process in microseconds, and the result of the load. */
export async function costOf(
  generator: HttpLoad,
  load: Load,
  processes: readonly (() => number)[],
): Promise<LoadResult & { microseconds: number[] }> {
  const before = processes.map((cpu) => cpu());
  const result = await generator.run(load);
  const microseconds = processes.map((cpu, index) => (cpu() - before[index]!) / result.replies);
  return { ...result, microseconds };
}

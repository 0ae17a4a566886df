// Measures work that only needs the processor, by the CPU time of this process.

const sliceMilliseconds = 500;

/** Repeats the work, which returns a count, for a while. Returns the count per second of CPU time. */
export function perCpuSecond(work: () => number): number {
  const ends = performance.now() + sliceMilliseconds;
  const begun = process.cpuUsage();
  let count = 0;
  while (performance.now() < ends) count += work();
  const { user, system } = process.cpuUsage(begun);
  return (count * 1e6) / (user + system);
}

// Compares Kellet with a baseline in the same run: rounds are interleaved, so that drifting machine speed affects both
// alike, and medians are compared.
import { cpus, totalmem } from 'node:os';

/** A benchmark and its optional baseline. Both return a figure in `unit`. */
export interface Benchmark {
  /** Name in results. */
  readonly name: string;
  readonly unit: string;
  /** Short description of the baseline. */
  readonly baseline: string;
  readonly rounds: number;
  /** Prepares the measurement. */
  readonly prepare: () => Promise<Prepared>;
}

/** A prepared measurement. */
export interface Prepared {
  readonly ours: () => Promise<number>;
  readonly baseline: () => Promise<number>;
  /** Additional figures in the same unit, measured in every round, by name. */
  readonly beside?: Readonly<Record<string, () => Promise<number>>>;
  /** Additional information about the last round, for display. */
  readonly remarks?: () => string;
  readonly close: () => Promise<void>;
}

/** Measurements that share a long preparation and run once each. */
export interface Suite {
  /** Prefix of the names of its results. */
  readonly name: string;
  readonly run: (report: (line: string) => void) => Promise<Result[]>;
}

/** A line of .kellet/bench.json. */
export interface Result {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  readonly baseline: string;
  readonly baseline_value: number;
  /** Ours over the baseline. */
  readonly ratio: number;
  readonly rounds: number;
  /** Additional figures in the same unit, by name. */
  readonly beside?: Readonly<Record<string, number>>;
  /** Figures in other units, by name. */
  readonly remarks?: Readonly<Record<string, number>>;
}

/** Returns the median of the values. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}

/** Runs a benchmark. `report` receives a line per step. */
export async function runBenchmark(benchmark: Benchmark, report: (line: string) => void): Promise<Result> {
  report(`${benchmark.name}: preparing`);
  const prepared = await benchmark.prepare();
  const ours: number[] = [];
  const baseline: number[] = [];
  const beside = Object.entries(prepared.beside ?? {}).map(([name, measure]) => ({
    name,
    measure,
    figures: [] as number[],
  }));
  try {
    // The first round of each is a warm-up and is not counted.
    for (let round = 0; round <= benchmark.rounds; round += 1) {
      const figures = { baseline: await prepared.baseline(), ours: await prepared.ours() };
      const others: number[] = [];
      for (const { measure } of beside) others.push(await measure());
      const label = round === 0 ? 'warm-up' : `round ${round}/${benchmark.rounds}`;
      const remarks = prepared.remarks ? `, ${prepared.remarks()}` : '';
      report(
        `${benchmark.name}: ${label}: ${format(figures.ours)} ${benchmark.unit}, ` +
          [`${benchmark.baseline} ${format(figures.baseline)}`]
            .concat(beside.map(({ name }, index) => `${name} ${format(others[index]!)}`))
            .join(', ') +
          remarks,
      );
      if (round === 0) continue;
      ours.push(figures.ours);
      baseline.push(figures.baseline);
      for (const [index, { figures }] of beside.entries()) figures.push(others[index]!);
    }
  } finally {
    await prepared.close();
  }
  const value = median(ours);
  const baselineValue = median(baseline);
  return {
    name: benchmark.name,
    value,
    unit: benchmark.unit,
    baseline: benchmark.baseline,
    baseline_value: baselineValue,
    ratio: value / baselineValue,
    rounds: benchmark.rounds,
    ...(beside.length > 0 && {
      beside: Object.fromEntries(beside.map(({ name, figures }) => [name, median(figures)])),
    }),
  };
}

/** Describes the machine. */
export const machine = () => ({
  processor: cpus()[0]?.model ?? 'unknown',
  processors: cpus().length,
  memory_bytes: totalmem(),
  node: process.version,
});

/** Formats a figure with three significant digits. */
export const format = (value: number): string =>
  value >= 1000 ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3);

/** Formats results as a table. Additional figures have separate lines with their ratio. */
export function table(results: readonly Result[]): string {
  const rows = results.flatMap((result) => [
    [
      result.name,
      `${format(result.value)} ${result.unit}`,
      `${result.baseline} ${format(result.baseline_value)}`,
      result.ratio.toFixed(2),
    ],
    ...Object.entries(result.beside ?? {}).map(([name, value]) => [
      '',
      '',
      `${name} ${format(value)}`,
      (result.value / value).toFixed(2),
    ]),
    ...Object.entries(result.remarks ?? {}).map(([name, value]) => ['', '', `${name} ${format(value)}`, '']),
  ]);
  const all = [['benchmark', 'ours', 'baseline', 'ratio'], ...rows];
  const widths = all[0]!.map((_, column) => Math.max(...all.map((row) => row[column]!.length)));
  return all.map((row) => row.map((cell, column) => cell.padEnd(widths[column]!)).join('  ')).join('\n');
}

// Compares Kellet with a baseline in the same run: rounds are interleaved, so that drifting machine speed affects both
// alike, and medians are compared.
import { cpus, loadavg, totalmem } from 'node:os';

/** Figures in other units, by name with unit, such as `p99 ms`. */
export type Remarks = Readonly<Record<string, number>>;

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
  /** Figures of the last round in other units. */
  readonly remarks?: () => Remarks;
  readonly close: () => Promise<void>;
}

/** Several measurements that share their preparation. */
export interface Suite {
  /** Name of its first result, and prefix of the others. */
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
  readonly remarks?: Remarks;
}

/** The figures of a round. */
export interface Round {
  readonly ours: number;
  readonly baseline: number;
  /** Additional figures in the same unit, by name. */
  readonly beside?: Readonly<Record<string, number>>;
  readonly remarks?: Remarks;
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
  const measured: Round[] = [];
  try {
    // The first round is a warm-up and is not counted.
    for (let number = 0; number <= benchmark.rounds; number += 1) {
      const baseline = await prepared.baseline();
      const ours = await prepared.ours();
      const beside: Record<string, number> = {};
      for (const [name, measure] of Object.entries(prepared.beside ?? {})) beside[name] = await measure();
      const round = { ours, baseline, beside, remarks: prepared.remarks?.() ?? {} };
      const label = number === 0 ? 'warm-up' : `round ${number}/${benchmark.rounds}`;
      report(`${benchmark.name}: ${label}: ${describeRound(benchmark, round)}`);
      if (number > 0) measured.push(round);
    }
  } finally {
    await prepared.close();
  }
  return resultOf(benchmark, measured);
}

/** Describes the figures of a round in a line. */
export function describeRound({ unit, baseline }: Pick<Benchmark, 'unit' | 'baseline'>, round: Round): string {
  const others = { [baseline]: round.baseline, ...round.beside, ...round.remarks };
  return [
    `${format(round.ours)} ${unit}`,
    ...Object.entries(others).map(([name, figure]) => `${name} ${format(figure)}`),
  ].join(', ');
}

/** Returns the medians of the rounds, of which there is at least one. */
export function resultOf(
  { name, unit, baseline }: Pick<Benchmark, 'name' | 'unit' | 'baseline'>,
  rounds: readonly Round[],
): Result {
  const value = median(rounds.map((round) => round.ours));
  const baselineValue = median(rounds.map((round) => round.baseline));
  const beside = medians(rounds.map((round) => round.beside ?? {}));
  const remarks = medians(rounds.map((round) => round.remarks ?? {}));
  return {
    ...{ name, value, unit, baseline, baseline_value: baselineValue, ratio: value / baselineValue },
    rounds: rounds.length,
    ...(Object.keys(beside).length > 0 && { beside }),
    ...(Object.keys(remarks).length > 0 && { remarks }),
  };
}

/** Returns the median of each figure over the rounds that have it. */
function medians(rounds: readonly Remarks[]): Remarks {
  const names = new Set(rounds.flatMap((round) => Object.keys(round)));
  return Object.fromEntries(
    [...names].map((name) => [name, median(rounds.flatMap((round) => (name in round ? [round[name]!] : [])))]),
  );
}

/** Describes the machine. */
export const machine = () => ({
  processor: cpus()[0]?.model ?? 'unknown',
  processors: cpus().length,
  memory_bytes: totalmem(),
  node: process.version,
  time: new Date().toISOString(),
  /** Load of the machine: the average number of running processes over a minute. */
  load: loadavg()[0]!,
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

// Counts the results of a simulation, and formats them.
import { createHistogram } from 'node:perf_hooks';

/** Counters of a simulation. */
export class Statistics {
  connected = 0;
  /** Points that the platform has stored. */
  accepted = 0;
  /** Points that it refused. */
  rejected = 0;
  /** Messages without a response, or with an error. */
  failed = 0;
  /** Messages that were due while too many had no response. */
  skipped = 0;
  commands = 0;
  updates = 0;
  /** The latest few errors by text. */
  readonly errors = new Map<string, number>();
  private readonly latency = createHistogram({ lowest: 1, highest: 3_600_000_000, figures: 3 });

  /** Records the time between the moment at which a message was due and its response. */
  responded(milliseconds: number): void {
    this.latency.record(Math.max(1, Math.round(milliseconds * 1000)));
  }

  error(error: unknown): void {
    const text = (error instanceof Error ? error.message : String(error)).slice(0, 200);
    if (this.errors.size < 10 || this.errors.has(text)) this.errors.set(text, (this.errors.get(text) ?? 0) + 1);
  }

  /** Returns a percentile of the latency in milliseconds. */
  percentile(percent: number): number {
    return this.latency.count === 0 ? 0 : this.latency.percentile(percent) / 1000;
  }

  summary(seconds: number) {
    const { accepted, rejected, failed, skipped, commands, updates } = this;
    const rounded = (value: number): number => Math.round(value * 1000) / 1000;
    return {
      ...{ seconds: rounded(seconds), accepted, rejected, failed, skipped, commands, updates },
      points_per_second: rounded(accepted / Math.max(seconds, 0.001)),
      latency_ms: {
        ...{ p50: rounded(this.percentile(50)), p90: rounded(this.percentile(90)), p99: rounded(this.percentile(99)) },
        ...{ p999: rounded(this.percentile(99.9)), max: rounded(this.percentile(100)) },
      },
      errors: Object.fromEntries(this.errors),
    };
  }
}

const number = (value: number): string => value.toLocaleString('en-US', { maximumFractionDigits: 1 });

/** Returns the line that shows the progress of a simulation. */
export function progressLine(statistics: Statistics, seconds: number, pointsPerSecond: number): string {
  const { connected, accepted, rejected, failed, skipped } = statistics;
  return [
    `${String(Math.round(seconds)).padStart(5)} s`,
    `${number(pointsPerSecond)} points/s`,
    `${number(accepted)} accepted`,
    ...(rejected ? [`${number(rejected)} rejected`] : []),
    ...(failed ? [`${number(failed)} failed`] : []),
    ...(skipped ? [`${number(skipped)} skipped`] : []),
    ...(connected ? [`${number(connected)} connected`] : []),
    `p50 ${number(statistics.percentile(50))} ms, p99 ${number(statistics.percentile(99))} ms`,
  ].join('  ');
}

/** Returns the summary as text. */
export function summaryText(summary: ReturnType<Statistics['summary']>): string {
  const { latency_ms: latency } = summary;
  const rows: [string, string][] = [
    ['seconds', number(summary.seconds)],
    ['points accepted', `${number(summary.accepted)} (${number(summary.points_per_second)} per second)`],
    ['points rejected', number(summary.rejected)],
    ['messages failed', number(summary.failed)],
    ['messages skipped', number(summary.skipped)],
    ['commands', number(summary.commands)],
    ['updates', number(summary.updates)],
    ...Object.entries(latency).map(([name, value]): [string, string] => [`latency ${name}`, `${number(value)} ms`]),
    ...Object.entries(summary.errors).map(([text, count]): [string, string] => [`error × ${count}`, text]),
  ];
  return rows.map(([name, value]) => `${name.padEnd(18)}${value}\n`).join('');
}

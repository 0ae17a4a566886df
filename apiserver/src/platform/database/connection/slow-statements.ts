// Reports statements that took PostgreSQL long: a log line and a metric.
import type { Logger } from '../../observability/logger.ts';
import { Histogram, type Registry } from '../../observability/metrics.ts';
import { shorten } from '../../shorten.ts';
import type { Statement } from './statement-batch.ts';

const maxText = 500;
const maxTexts = 5;

/** Tracks statement durations from sending to response. */
export class SlowStatements {
  private readonly logger: Logger;
  private readonly milliseconds: number;
  private readonly seconds: Histogram;

  /** A statement is slow from `milliseconds` on; 0 disables reporting. */
  constructor(milliseconds: number, logger: Logger, metrics: Registry) {
    this.milliseconds = milliseconds;
    this.logger = logger;
    this.seconds = new Histogram({
      name: 'kellet_database_slow_statement_seconds',
      help: 'Duration of slow statements; those sent together count as one.',
      buckets: [0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30],
      registers: [metrics],
    });
  }

  /**
   * Judges statements that were sent together; their responses arrive together, so the slow one cannot be identified. The
   * log line contains their texts, never the values of their parameters, and names their request like every line.
   */
  judge(statements: readonly Statement[], milliseconds: number, hasFailed: boolean): void {
    if (this.milliseconds === 0 || milliseconds < this.milliseconds) return;
    this.seconds.observe(milliseconds / 1000);
    const texts = statements.slice(0, maxTexts).map(({ text }) => shorten(text.replace(/\s+/g, ' ').trim(), maxText));
    this.logger.warn(
      { statements: texts, count: statements.length, milliseconds: Math.round(milliseconds), failed: hasFailed },
      'slow database statements',
    );
  }
}

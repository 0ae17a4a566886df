// Sends stored bytes to the processor and applies its response.
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';
import { type Processor, ProcessorUnavailable } from '../processor/processor.ts';
import type { StatusReport } from '../processor/processor-status.ts';
import { markTrouble, readTransaction } from './anchor-store.ts';

/** Applies the processor's reports (pipeline/tracker.ts). */
export interface ReportListener {
  apply(report: StatusReport, isCurrent: boolean): Promise<unknown>;
}

export class Sender {
  private readonly database: Database;
  private readonly processor: Processor;
  private readonly tracker: ReportListener;
  private readonly logger: Logger;
  private readonly submissions: Counter;

  constructor(database: Database, processor: Processor, tracker: ReportListener, logger: Logger, metrics: Registry) {
    this.database = database;
    this.processor = processor;
    this.tracker = tracker;
    this.logger = logger;
    this.submissions = counter(
      metrics,
      'kellet_anchor_submissions_total',
      'Transactions sent to the processor, by result.',
      ['result'],
    );
  }

  /** Sends a stored transaction. Does not fail if the processor is unreachable: the watcher sends it again. */
  async send(txid: string, raw: Uint8Array): Promise<void> {
    try {
      const response = await this.processor.submit(raw);
      if ('report' in response) {
        this.submissions.inc({ result: response.report.status.toLowerCase() });
        await this.tracker.apply(response.report, true);
        return;
      }
      this.submissions.inc({ result: 'refused' });
      await this.noteRefusal(txid, response.refused, response.message);
    } catch (error) {
      if (!(error instanceof ProcessorUnavailable)) throw error;
      this.submissions.inc({ result: 'unavailable' });
      this.logger.debug({ err: error, txid }, 'the processor is unavailable; the transaction will be sent again');
    }
  }

  /** Records on the batch that the processor refuses the bytes. */
  async noteRefusal(txid: string, status: number, message: string): Promise<void> {
    this.logger.error({ txid, status, reason: message }, 'the processor refuses a transaction');
    this.processor.forgetPolicy();
    await this.database.system(async (tx) => {
      const made = await readTransaction(tx, txid);
      if (!made?.batchId) return;
      await markTrouble(tx, made.batchId, `the processor refuses the transaction: ${message}`, true);
    });
  }
}

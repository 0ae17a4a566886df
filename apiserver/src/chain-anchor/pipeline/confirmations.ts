// Handles callbacks: those in `arc.callbacks` about known transactions become `anchor.confirmations`, which lead to the
// proof. Polling suffices without them; they only make it faster.
import type { JsMsg } from 'nats';
import type { Broker } from '../../platform/events/broker.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { consumeDurably, type DurableConsumer } from './durable-consumer.ts';
import { parseCallback, type StatusReport } from '../processor/processor-status.ts';
import type { Tracker } from './tracker.ts';

const callbackSubject = 'arc.callbacks';
const confirmationSubject = 'anchor.confirmations';

/** The event `anchor.confirmations`: what the processor reports about the transaction of a batch or of the wallet. */
interface Confirmation {
  readonly specversion: '1.0';
  readonly id: string;
  readonly source: '/kellet';
  readonly type: typeof confirmationSubject;
  /** The txid. */
  readonly subject: string;
  readonly time: string;
  readonly datacontenttype: 'application/json';
  /** Empty for a transaction of the wallet. */
  readonly tenantid: string;
  readonly data: { readonly batch_id: string; readonly report: StatusReport };
}

export class Confirmations {
  private readonly database: Database;
  private readonly broker: Broker;
  private readonly tracker: Tracker;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private consumers: DurableConsumer[] = [];

  constructor(database: Database, broker: Broker, tracker: Tracker, clock: Clock, logger: Logger) {
    this.database = database;
    this.broker = broker;
    this.tracker = tracker;
    this.clock = clock;
    this.logger = logger;
  }

  start(): void {
    const { broker, logger } = this;
    this.consumers = [
      consumeDurably(broker, 'chain-anchor-callbacks', callbackSubject, (message) => this.fanOut(message), logger),
      consumeDurably(
        broker,
        'chain-anchor-confirmations',
        confirmationSubject,
        (message) => this.finalise(message),
        logger,
      ),
    ];
  }

  async stop(): Promise<void> {
    await Promise.all(this.consumers.map((consumer) => consumer.stop()));
  }

  /** Publishes a confirmation for each report about a known transaction. */
  private async fanOut(message: JsMsg): Promise<void> {
    const reports = parseCallback(parseJson(message.data));
    for (const [index, report] of reports.entries()) {
      const owner = await this.ownerOf(report.txid);
      if (!owner) continue;
      // A redelivered callback keeps its stream sequence, so the id is the same.
      const id = `arc-callback-${message.seq}-${index}`;
      const event: Confirmation = {
        specversion: '1.0',
        id,
        source: '/kellet',
        type: confirmationSubject,
        subject: report.txid,
        time: new Date(this.clock.now()).toISOString(),
        datacontenttype: 'application/json',
        tenantid: owner.tenantId,
        data: { batch_id: owner.batchId, report },
      };
      await this.broker.publish(confirmationSubject, Buffer.from(JSON.stringify(event)), id);
    }
  }

  private async finalise(message: JsMsg): Promise<void> {
    const event = parseJson(message.data) as Partial<Confirmation> | undefined;
    const report = event?.data?.report;
    if (!report) return;
    const outcome = await this.tracker.apply(report, false);
    this.logger.debug({ txid: report.txid, status: report.status, outcome }, 'confirmation');
  }

  private async ownerOf(txid: string): Promise<{ tenantId: string; batchId: string } | undefined> {
    const { rows } = await this.database.systemRead((tx) =>
      tx.query<{ tenant_id: string | null; batch_id: string | null }>(
        `SELECT batch.tenant_id, made.batch_id FROM chain_transactions AS made LEFT JOIN anchor_batches AS batch USING (batch_id)
         WHERE made.txid = $1`,
        [txid],
      ),
    );
    return rows[0] && { tenantId: rows[0].tenant_id ?? '', batchId: rows[0].batch_id ?? '' };
  }
}

function parseJson(data: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(data)) as unknown;
  } catch {
    return undefined;
  }
}

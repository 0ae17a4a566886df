// Handles callbacks: those in `arc.callbacks` about known transactions become `anchor.confirmations`, which lead to the
// proof. Polling suffices without them; they only make it faster.
import type { JsMsg } from 'nats';
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Broker } from '../../platform/events/broker.ts';
import { cloudEvent } from '../../platform/events/cloud-event.ts';
import {
  callbackConsumer,
  callbackSubject,
  confirmationConsumer,
  confirmationSubject,
} from '../../platform/events/subjects.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { parseCallback, type StatusReport } from '../processor/processor-status.ts';
import { ownerOf } from '../transactions/anchor-store.ts';
import { consumeDurably, type DurableConsumer } from './durable-consumer.ts';
import type { Tracker } from './tracker.ts';

/**
 * The data of the event `anchor.confirmations`: what the processor reports about the transaction of a batch or of the wallet.
 * The event's subject is the txid.
 */
interface Confirmation {
  readonly batch_id: string;
  readonly report: StatusReport;
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
      consumeDurably(broker, callbackConsumer, callbackSubject, (message) => this.fanOut(message), logger),
      consumeDurably(broker, confirmationConsumer, confirmationSubject, (message) => this.finalise(message), logger),
    ];
  }

  async stop(): Promise<void> {
    await Promise.all(this.consumers.map((consumer) => consumer.stop()));
  }

  /** Publishes a confirmation for each report about a known transaction. */
  private async fanOut(message: JsMsg): Promise<void> {
    const reports = parseCallback(parseJson(message.data));
    for (const [index, report] of reports.entries()) {
      const owner = await this.database.systemRead((tx) => ownerOf(tx, report.txid));
      if (!owner) continue;
      // A redelivered callback keeps its stream sequence, so the id is the same.
      const id = `arc-callback-${message.seq}-${index}`;
      const data: Confirmation = { batch_id: owner.batchId, report };
      const facts = { id, type: confirmationSubject, subject: report.txid, tenantId: owner.tenantId };
      const event = { ...cloudEvent({ ...facts, at: this.clock.now() }), data };
      await this.broker.publish(confirmationSubject, Buffer.from(JSON.stringify(event)), id);
    }
  }

  private async finalise(message: JsMsg): Promise<void> {
    const event = parseJson(message.data) as { data?: Confirmation } | undefined;
    const report = event?.data?.report;
    if (!report) return;
    const outcome = await this.tracker.apply(report, false);
    this.logger.debug({ txid: report.txid, status: report.status, outcome }, 'confirmation');
  }
}

function parseJson(data: Uint8Array): unknown {
  try {
    return JSON.parse(new TextDecoder().decode(data)) as unknown;
  } catch {
    return undefined;
  }
}

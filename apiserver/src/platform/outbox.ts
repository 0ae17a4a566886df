// The transactional outbox: an event is a row of the transaction that causes it, and a relay publishes rows in order.
import { sleep, type Clock } from './clock.ts';
import type { Broker } from './broker.ts';
import type { Database, Transaction } from './database.ts';
import { newId } from './ids.ts';
import type { Logger } from './logger.ts';
import { traceHeaders } from './tracing.ts';

/** An event as its cause knows it. */
export interface OutboxEvent {
  readonly tenantId: string;
  /** The NATS subject, which is also the CloudEvents type. */
  readonly subject: string;
  /** The resource, for CloudEvents' `subject`: events of one resource are published in order. */
  readonly resource: string;
  readonly data: Record<string, unknown>;
  /** Kept back until this many milliseconds have passed or `release` is called (device.provisioned waits for its response). */
  readonly holdMilliseconds?: number;
}

/** The notification channel that wakes the relay. */
const channel = 'kellet_outbox';

/** Adds an event to the transaction; answers its id. */
export async function enqueue(tx: Transaction, event: OutboxEvent, clock: Clock): Promise<string> {
  const [id] = await enqueueAll(tx, [event], clock);
  return id!;
}

/** Adds events to the transaction in one statement; answers their ids in order. */
export async function enqueueAll(tx: Transaction, events: readonly OutboxEvent[], clock: Clock): Promise<string[]> {
  if (events.length === 0) return [];
  const time = new Date(clock.now()).toISOString();
  const ids = events.map(() => newId());
  // CloudEvents' extension for distributed tracing: the trace of the call that causes the events.
  const tracing = traceHeaders();
  const envelopes = events.map((event, index) => ({
    specversion: '1.0',
    id: ids[index],
    source: '/kellet',
    type: event.subject,
    subject: event.resource,
    time,
    datacontenttype: 'application/json',
    tenantid: event.tenantId,
    ...tracing,
    data: event.data,
  }));
  await tx.query(
    `INSERT INTO outbox (tenant_id, event_id, subject, payload, not_before)
     SELECT tenant_id, event_id, subject, payload, now() + hold * interval '1 millisecond'
     FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::int4[]) WITH ORDINALITY
       AS event (tenant_id, event_id, subject, payload, hold, place) ORDER BY place`,
    [
      events.map((event) => event.tenantId),
      ids,
      events.map((event) => event.subject),
      envelopes.map((envelope) => JSON.stringify(envelope)),
      events.map((event) => event.holdMilliseconds ?? 0),
    ],
  );
  if (events.some((event) => !event.holdMilliseconds)) await tx.query(`SELECT pg_notify('${channel}', '')`);
  return ids;
}

/** Publishes the outbox to the broker: at least once, in order per resource, one relay at a time across processes. */
export class OutboxRelay {
  private readonly database: Database;
  private readonly broker: Broker;
  private readonly logger: Logger;
  private readonly closing = new AbortController();
  private wake: () => void = () => undefined;
  private readonly running: Promise<void>;

  constructor(database: Database, broker: Broker, logger: Logger) {
    this.database = database;
    this.broker = broker;
    this.logger = logger;
    database.listen(
      [channel],
      () => this.wake(),
      () => this.wake(),
    );
    this.running = this.loop();
  }

  /** Lets held events of these ids go now. */
  async release(eventIds: readonly string[]): Promise<void> {
    await this.database.system((tx) =>
      tx.query(`UPDATE outbox SET not_before = now() WHERE event_id = ANY($1)`, [eventIds]),
    );
    this.wake();
  }

  private async loop(): Promise<void> {
    const { signal } = this.closing;
    while (!signal.aborted) {
      const published = await this.relayOnce().catch((error: unknown) => {
        this.logger.debug({ err: error }, 'outbox relay waits for the broker or the database');
        return 0;
      });
      if (published > 0) continue;
      // A sweep a second finds what no notification announced: held events, and rows written while the relay was away.
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      await Promise.race([woken, sleep(1000, signal)]);
    }
  }

  /** Publishes up to 200 events and deletes them; 0 when there was nothing to do. */
  private relayOnce(): Promise<number> {
    return this.database.system(async (tx) => {
      const lock = await tx.query<{ locked: boolean }>('SELECT pg_try_advisory_xact_lock(6452817302) AS locked');
      if (!lock.rows[0]?.locked) return 0;
      const { rows } = await tx.query<{ position: bigint; event_id: string; subject: string; payload: string }>(
        `SELECT position, event_id, subject, payload FROM outbox
         WHERE not_before <= now() ORDER BY position LIMIT 200`,
      );
      const done: bigint[] = [];
      let failure: unknown;
      for (const row of rows) {
        try {
          await this.broker.publish(row.subject, Buffer.from(row.payload), row.event_id);
          done.push(row.position);
        } catch (error) {
          failure = error;
          break;
        }
      }
      if (done.length > 0) await tx.query('DELETE FROM outbox WHERE position = ANY($1)', [done]);
      else if (failure) throw failure as Error;
      return done.length;
    });
  }

  async close(): Promise<void> {
    this.closing.abort();
    this.wake();
    await this.running;
  }
}

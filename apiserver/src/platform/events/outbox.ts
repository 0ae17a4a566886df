// The transactional outbox: an event is a row of the transaction that causes it, and a relay publishes rows in order.
import { Loop } from '../background/loop.ts';
import type { Clock } from '../clock.ts';
import { Batches } from '../concurrency/keyed-batches.ts';
import { outboxLock, tryLock } from '../database/advisory-locks.ts';
import { outboxChannel } from '../database/channels.ts';
import type { Database, Transaction } from '../database/database.ts';
import { newId } from '../ids.ts';
import type { Logger } from '../observability/logger.ts';
import { readGauge, type Registry } from '../observability/metrics.ts';
import { traceHeaders } from '../observability/tracing.ts';
import { boundedCount } from '../statements/bounded-count.ts';
import { pageBytes, type SizedRow, sizedRows } from '../statements/sized-rows.ts';
import { waitingTenants } from '../statements/waiting-tenants.ts';
import { type Broker, refusalOf } from './broker.ts';
import { cloudEvent } from './cloud-event.ts';

/** An event as enqueued by its producer. */
export interface OutboxEvent {
  readonly tenantId: string;
  /** The NATS subject, also used as the CloudEvents type. */
  readonly subject: string;
  /** The resource, used as the CloudEvents `subject`; events of one resource are published in order. */
  readonly resource: string;
  readonly data: Record<string, unknown>;
  /** When it happened, in milliseconds of Unix time, if that was before now. */
  readonly at?: number;
  /**
   * Held back until this many milliseconds have passed or `release` is called (device.provisioned waits for its
   * response).
   */
  readonly holdMilliseconds?: number;
}

/** Adds an event to the transaction and returns its position. */
export async function enqueue(tx: Transaction, event: OutboxEvent, clock: Clock): Promise<bigint> {
  const [position] = await enqueueAll(tx, [event], clock);
  return position!;
}

/** Adds events to the transaction in one statement and returns their positions in order. */
export async function enqueueAll(tx: Transaction, events: readonly OutboxEvent[], clock: Clock): Promise<bigint[]> {
  if (events.length === 0) return [];
  const ids = events.map(() => newId());
  // CloudEvents' distributed tracing extension: the trace of the call that causes the events.
  const tracing = traceHeaders();
  const now = clock.now();
  const envelopes = events.map(({ subject: type, resource: subject, tenantId, data, at = now }, index) => ({
    ...cloudEvent({ id: ids[index]!, type, subject, tenantId, at }),
    ...tracing,
    data,
  }));
  const { rows } = await tx.query<{ position: bigint }>(
    `INSERT INTO outbox (tenant_id, event_id, subject, payload, not_before)
     SELECT tenant_id, event_id, subject, payload, now() + hold * interval '1 millisecond'
     FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::int4[]) WITH ORDINALITY
       AS event (tenant_id, event_id, subject, payload, hold, place) ORDER BY place
     RETURNING position`,
    [
      events.map((event) => event.tenantId),
      ids,
      events.map((event) => event.subject),
      envelopes.map((envelope) => JSON.stringify(envelope)),
      events.map((event) => event.holdMilliseconds ?? 0),
    ],
  );
  if (events.some((event) => !event.holdMilliseconds)) tx.hint(outboxChannel);
  return rows.map((row) => row.position);
}

/** Number of events read, published and deleted together. */
const maxPerRound = 500;

/** A round starts no more publications after this long, because it holds a transaction. */
const roundMilliseconds = 10_000;

/** How long PostgreSQL waits for a relay whose connection was lost before it gives the lock to another one. */
const idleMilliseconds = 30_000;

interface Row {
  readonly position: bigint;
  readonly event_id: string;
  readonly tenant_id: string;
  readonly subject: string;
  readonly payload: string;
}

interface Refused {
  readonly row: Row;
  readonly reason: string;
}

/** The result of a round. Events in neither list are retried. */
interface Round {
  readonly published: bigint[];
  readonly refused: Refused[];
}

/**
 * Returns events that are not held, as many as a round publishes, of which each is parsed: an equal number of each tenant, those of a
 * tenant in order. If they are too large together, tenants have an equal share of the bytes.
 */
export async function nextEvents(tx: Transaction): Promise<readonly Row[]> {
  const { rows } = await tx.query<Row & SizedRow & Record<string, unknown>>(
    `WITH RECURSIVE ${waitingTenants('outbox')}
     ${sizedRows(
       `SELECT e.*, octet_length(payload) AS row_bytes,
          sum(octet_length(payload)) OVER (PARTITION BY e.tenant_id ORDER BY position) - octet_length(payload) AS turn
        FROM waiting w, LATERAL (
          SELECT position, event_id, tenant_id, subject, payload FROM outbox
          WHERE tenant_id = w.tenant_id AND not_before <= now()
          ORDER BY position LIMIT greatest(1, $1::int4 / (SELECT count(tenant_id) FROM waiting))) AS e`,
       'turn, position',
       1,
     )}`,
    [maxPerRound, pageBytes],
  );
  return rows;
}

/**
 * Publishes the outbox to the broker: at least once, with the same id when repeated; in order per resource, otherwise
 * concurrently; one relay at a time across processes. Tenants take turns. An event that the broker refuses permanently is set aside.
 */
export class OutboxRelay {
  private readonly database: Database;
  private readonly broker: Broker;
  private readonly logger: Logger;
  private readonly loop: Loop;
  // Responses that are written at the same time release their events in one transaction.
  private readonly releases = new Batches<readonly bigint[], undefined>(maxPerRound, async (_key, positions) => {
    await this.database.system((tx) =>
      tx.query('UPDATE outbox SET not_before = now() WHERE position = ANY($1)', [positions.flat()]),
    );
    this.loop.wake();
    return positions.map(() => undefined);
  });

  constructor(database: Database, broker: Broker, logger: Logger, metrics: Registry) {
    this.database = database;
    this.broker = broker;
    this.logger = logger;
    addGauges({ database, metrics, logger });
    // The interval finds what no notification announced: held events, and rows written while the relay was not running.
    this.loop = new Loop(logger, 'outbox relay', 1000, async () => (await this.relayOnce()) > 0);
    database.listen(
      [outboxChannel],
      () => this.loop.wake(),
      () => this.loop.wake(),
    );
    this.loop.start();
  }

  /** Releases the held events at these positions. */
  async release(positions: readonly bigint[]): Promise<void> {
    await this.releases.add('', positions);
  }

  /** Publishes and deletes some events, sets others aside, and returns how many. */
  private async relayOnce(): Promise<number> {
    // While the broker is down, a publication would only wait for its timeout.
    if (!this.broker.isConnected) return 0;
    const { published, refused } = await this.database.system(async (tx): Promise<Round> => {
      const [isOnly] = await Promise.all([
        tryLock(tx, outboxLock),
        tx.query(`SET LOCAL idle_in_transaction_session_timeout = ${idleMilliseconds}`),
      ]);
      if (!isOnly) return { published: [], refused: [] };
      const rows = await nextEvents(tx);
      const round = await this.publish(rows);
      if (round.published.length > 0) {
        await tx.query('DELETE FROM outbox WHERE position = ANY($1)', [round.published]);
      }
      if (round.refused.length > 0) await setAside(tx, round.refused);
      return round;
    });
    const [first] = refused;
    if (first) {
      const { event_id: eventId, subject, payload } = first.row;
      this.logger.error(
        { events: refused.length, eventId, subject, bytes: Buffer.byteLength(payload), reason: first.reason },
        'the broker refuses events; they are set aside (kellet-apiserver events)',
      );
    }
    return published.length + refused.length;
  }

  /** Publishes the events of each resource one after another, and those of different resources concurrently. */
  private async publish(rows: readonly Row[]): Promise<Round> {
    const round: Round = { published: [], refused: [] };
    const failures: unknown[] = [];
    const deadline = performance.now() + roundMilliseconds;
    const publishInOrder = async (ofResource: readonly Row[]) => {
      for (const row of ofResource) {
        if (failures.length > 0 || performance.now() > deadline) return;
        try {
          await this.broker.publish(row.subject, Buffer.from(row.payload), row.event_id);
          round.published.push(row.position);
        } catch (error) {
          const reason = refusalOf(error);
          if (reason === undefined) return void failures.push(error);
          round.refused.push({ row, reason });
        }
      }
    };
    await Promise.all([...Map.groupBy(rows, resourceOf).values()].map(publishInOrder));
    if (failures.length > 0 && round.published.length + round.refused.length === 0) throw failures[0];
    return round;
  }

  close(): Promise<void> {
    return this.loop.stop();
  }
}

/** Returns the resource that an event is about, unique across tenants; for an invalid CloudEvent, its NATS subject. */
function resourceOf({ tenant_id, subject, payload }: Row): string {
  try {
    return `${tenant_id}/${(JSON.parse(payload) as { subject: string }).subject}`;
  } catch {
    return `${tenant_id}/${subject}`;
  }
}

async function setAside(tx: Transaction, refused: readonly Refused[]): Promise<void> {
  await tx.query(
    `WITH refused AS (
       DELETE FROM outbox USING unnest($1::int8[], $2::text[]) AS given (at, reason) WHERE position = at
       RETURNING event_id, tenant_id, subject, payload, reason
     ) INSERT INTO outbox_set_aside (event_id, tenant_id, subject, payload, reason) SELECT * FROM refused
     ON CONFLICT DO NOTHING`,
    [refused.map(({ row }) => row.position), refused.map(({ reason }) => reason)],
  );
  await tx.query(`DELETE FROM outbox_set_aside WHERE set_aside_at < now() - interval '30 days'`);
}

function addGauges(parts: { database: Database; metrics: Registry; logger: Logger }): void {
  const read = async (query: string): Promise<number> => {
    const { rows } = await parts.database.systemRead((tx) => tx.query<{ value: number }>(query));
    return rows[0]?.value ?? 0;
  };
  readGauge(parts, 'kellet_outbox_oldest_seconds', 'Age of the oldest event waiting for the broker', () =>
    read('SELECT extract(epoch FROM now() - not_before)::float8 AS value FROM outbox ORDER BY position LIMIT 1'),
  );
  readGauge(parts, 'kellet_outbox_set_aside', 'Events refused by the broker, until they are resent or dropped', () =>
    read(`SELECT ${boundedCount('SELECT FROM outbox_set_aside')} AS value`),
  );
}

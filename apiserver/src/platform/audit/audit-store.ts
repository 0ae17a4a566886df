// The SQL of the audit log (migrations/0063_audit_log.sql).
import { auditChannel } from '../database/channels.ts';
import { named } from '../database/connection/statement-batch.ts';
import type { Database, Transaction } from '../database/database.ts';
import { boundedCount } from '../statements/bounded-count.ts';
import { type AuditRecord, type ChainedEvent, type ChainHead, emptyHead } from './audit-event.ts';

interface RecordRow {
  event_id: string;
  tenant_id: string;
  time: Date;
  actor_kind: string;
  actor_id: string;
  actor_name: string;
  action: string;
  resource_kind: string;
  resource_id: string;
  result: string;
  address: string;
  user_agent: string;
  request_id: string;
}

interface PendingRow extends RecordRow {
  position: bigint;
  is_known: boolean;
}

interface EventRow extends RecordRow {
  sequence: number;
  previous_hash: Buffer;
  hash: Buffer;
  /** time in microseconds, as a cursor. */
  time_text: string;
}

const recordColumns = `event_id, tenant_id, time, actor_kind, actor_id, actor_name, action, resource_kind, resource_id, result,
  address, user_agent, request_id`;

const recordTypes = `uuid[], text[], timestamptz[], text[], text[], text[], text[], text[], text[], text[], text[], text[], text[]`;

/** Returns the values of the columns of records, column by column. */
function columnsOf(records: readonly AuditRecord[]): unknown[][] {
  return [
    records.map(({ eventId }) => eventId),
    records.map(({ tenantId }) => tenantId),
    records.map(({ time }) => new Date(time).toISOString()),
    records.map(({ actor }) => actor.kind),
    records.map(({ actor }) => actor.id),
    records.map(({ actor }) => actor.name),
    records.map(({ action }) => action),
    records.map(({ resource }) => resource.kind),
    records.map(({ resource }) => resource.id),
    records.map(({ result }) => result),
    records.map(({ address }) => address),
    records.map(({ userAgent }) => userAgent),
    records.map(({ requestId }) => requestId),
  ];
}

/** Returns `$1::uuid[], $2::text[], …` for a list of types. */
const parametersOf = (types: string): string =>
  types
    .split(',')
    .map((type, index) => `$${index + 1}::${type.trim()}`)
    .join(', ');

const toRecord = (row: RecordRow): AuditRecord => ({
  eventId: row.event_id,
  tenantId: row.tenant_id,
  time: row.time.getTime(),
  actor: { kind: row.actor_kind, id: row.actor_id, name: row.actor_name },
  action: row.action,
  resource: { kind: row.resource_kind, id: row.resource_id },
  result: row.result,
  address: row.address,
  userAgent: row.user_agent,
  requestId: row.request_id,
});

const insertion = named(
  'audit',
  `INSERT INTO audit_pending (${recordColumns}) SELECT * FROM unnest(${parametersOf(recordTypes)})`,
);

/** Adds records, in order, to those that wait to be chained. */
export async function insertPending(tx: Transaction, records: readonly AuditRecord[]): Promise<void> {
  await tx.query(insertion.text, columnsOf(records));
  tx.hint(auditChannel);
}

/** Adds records in a transaction of their own. If it fails, they may have been added: a record that is added twice is chained once. */
export async function insertPendingAlone(database: Database, records: readonly AuditRecord[]): Promise<void> {
  await database.repeatable({ ...insertion, values: columnsOf(records) });
  database.hint(auditChannel);
}

/** A record that waits. `isKnown`: it is in the chain already, because it was written twice. */
export interface PendingRecord {
  readonly position: bigint;
  readonly record: AuditRecord;
  readonly isKnown: boolean;
}

/** Returns the records that have waited longest, in order, and locks them: a purge that deletes them waits for their events. */
export async function pendingRecords(tx: Transaction, limit: number): Promise<PendingRecord[]> {
  const { rows } = await tx.query<PendingRow & Record<string, unknown>>(
    `SELECT position, ${recordColumns}, EXISTS (
       SELECT FROM audit_events e WHERE e.tenant_id = p.tenant_id AND e.event_id = p.event_id) AS is_known
     FROM audit_pending p ORDER BY position LIMIT $1 FOR UPDATE OF p`,
    [limit],
  );
  return rows.map((row) => ({ position: row.position, record: toRecord(row), isKnown: row.is_known }));
}

/** Reports whether records of a log are waiting. */
export async function isPending(tx: Transaction, tenantId: string): Promise<boolean> {
  const { rows } = await tx.query<{ waits: boolean }>(
    'SELECT EXISTS (SELECT FROM audit_pending WHERE tenant_id = $1) AS waits',
    [tenantId],
  );
  return rows[0]!.waits;
}

/** Returns how many records of all logs are waiting. */
export async function countPending(tx: Transaction): Promise<number> {
  const { rows } = await tx.query<{ count: number }>(`SELECT ${boundedCount('SELECT FROM audit_pending')} AS count`);
  return rows[0]!.count;
}

/** Deletes records that are in the chain. */
export async function deletePending(tx: Transaction, positions: readonly bigint[]): Promise<void> {
  await tx.query('DELETE FROM audit_pending WHERE position = ANY($1::int8[])', [positions.map(String)]);
}

/** Returns where the chains of tenants end, by tenant. */
export async function chainHeads(tx: Transaction, tenantIds: readonly string[]): Promise<Map<string, ChainHead>> {
  const { rows } = await tx.query<{ tenant_id: string; sequence: number; hash: Buffer }>(
    'SELECT tenant_id, sequence, hash FROM audit_heads WHERE tenant_id = ANY($1) FOR UPDATE',
    [tenantIds],
  );
  const known = new Map(rows.map((row) => [row.tenant_id, { sequence: row.sequence, hash: row.hash.toString('hex') }]));
  return new Map(tenantIds.map((tenantId) => [tenantId, known.get(tenantId) ?? emptyHead]));
}

const chainText = `INSERT INTO audit_events (${recordColumns}, sequence, previous_hash, hash)
  SELECT * FROM unnest(${parametersOf(`${recordTypes}, int4[], bytea[], bytea[]`)})`;

/** Adds events to the chains of their tenants, and moves the heads to the last of each. */
export async function insertEvents(tx: Transaction, events: readonly ChainedEvent[]): Promise<void> {
  const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex');
  const links = [
    events.map(({ sequence }) => sequence),
    events.map(({ previousHash }) => bytes(previousHash)),
    events.map(({ hash }) => bytes(hash)),
  ];
  const heads = [...new Map(events.map((event) => [event.tenantId, event])).values()];
  await Promise.all([
    tx.query(chainText, [...columnsOf(events), ...links]),
    tx.query(
      `INSERT INTO audit_heads AS head (tenant_id, sequence, hash)
       SELECT * FROM unnest($1::text[], $2::int4[], $3::bytea[])
       ON CONFLICT (tenant_id) DO UPDATE SET sequence = excluded.sequence, hash = excluded.hash`,
      [
        heads.map(({ tenantId }) => tenantId),
        heads.map(({ sequence }) => sequence),
        heads.map(({ hash }) => bytes(hash)),
      ],
    ),
  ]);
}

/** Which events to list. */
export interface AuditFilters {
  readonly actor: string;
  readonly action: string;
  readonly resourceId: string;
  readonly result: string;
  readonly start: Date | undefined;
  readonly end: Date | undefined;
}

/** Position at which a page of events ended. */
export interface AuditCursor {
  readonly time: string;
  readonly sequence: number;
}

/** An event with its position in the list. */
export interface ListedEvent {
  readonly event: ChainedEvent;
  readonly cursor: AuditCursor;
}

/** Lists the events of a log, newest first. */
export async function listEvents(
  tx: Transaction,
  tenantId: string,
  filters: AuditFilters,
  after: AuditCursor | undefined,
  limit: number,
): Promise<ListedEvent[]> {
  const values: unknown[] = [tenantId];
  const conditions = ['tenant_id = $1'];
  const add = (value: unknown, condition: (parameter: string) => string): void => {
    if (value === '' || value === undefined) return;
    values.push(value);
    conditions.push(condition(`$${values.length}`));
  };
  add(filters.actor, (parameter) => `actor_id = ${parameter}`);
  add(filters.action, (parameter) => `action = ${parameter}`);
  add(filters.resourceId, (parameter) => `resource_id = ${parameter}`);
  add(filters.result, (parameter) => `result = ${parameter}`);
  add(filters.start, (parameter) => `time >= ${parameter}`);
  add(filters.end, (parameter) => `time < ${parameter}`);
  if (after) {
    values.push(after.time, after.sequence);
    conditions.push(`(time, sequence) < ($${values.length - 1}::timestamptz, $${values.length}::int4)`);
  }
  values.push(limit);
  const { rows } = await tx.query<EventRow & Record<string, unknown>>(
    `SELECT ${recordColumns}, sequence, previous_hash, hash, time::text AS time_text FROM audit_events
     WHERE ${conditions.join(' AND ')} ORDER BY time DESC, sequence DESC LIMIT $${values.length}`,
    values,
  );
  return rows.map((row) => ({ event: toChained(row), cursor: { time: row.time_text, sequence: row.sequence } }));
}

const toChained = (row: EventRow): ChainedEvent => ({
  ...toRecord(row),
  sequence: row.sequence,
  previousHash: row.previous_hash.toString('hex'),
  hash: row.hash.toString('hex'),
});

/** The first stored event of a log, 0 if none is stored, and its head. */
export interface ChainEnds {
  /** The event that was anchored last; 0 if none was. */
  readonly anchored: number;
  readonly first: number;
  readonly head: ChainHead;
}

/** Returns where a log begins and ends, or undefined for one without a head. */
export async function chainEnds(tx: Transaction, tenantId: string): Promise<ChainEnds | undefined> {
  const { rows } = await tx.query<{ first: number; sequence: number; hash: Buffer; anchored: number }>(
    `SELECT sequence, hash, anchored_sequence AS anchored,
       coalesce((SELECT sequence FROM audit_events e WHERE e.tenant_id = $1 ORDER BY sequence LIMIT 1), 0) AS first
     FROM audit_heads WHERE tenant_id = $1`,
    [tenantId],
  );
  const [row] = rows;
  return (
    row && {
      ...{ first: row.first, anchored: row.anchored },
      head: { sequence: row.sequence, hash: row.hash.toString('hex') },
    }
  );
}

/** Returns the events of a log in a range of sequences, both included, in order. */
export async function eventsBetween(
  tx: Transaction,
  tenantId: string,
  first: number,
  last: number,
): Promise<ChainedEvent[]> {
  const { rows } = await tx.query<EventRow & Record<string, unknown>>(
    `SELECT ${recordColumns}, sequence, previous_hash, hash FROM audit_events
     WHERE tenant_id = $1 AND sequence BETWEEN $2 AND $3 ORDER BY sequence`,
    [tenantId, first, last],
  );
  return rows.map(toChained);
}

/**
 * Deletes events that are older than these many days, only from the beginning of a chain, so that what remains is one. At most
 * `limit`; returns how many. The clock of the database counts: a process whose clock is wrong must not delete the log.
 */
export async function deleteExpired(tx: Transaction, tenantId: string, days: number, limit: number): Promise<number> {
  await tx.query("SELECT set_config('kellet.audit_removal', 'retention', true)");
  const { rowCount } = await tx.query(
    `WITH oldest AS (
       SELECT sequence, time FROM audit_events WHERE tenant_id = $1 ORDER BY sequence LIMIT $3
     ), ended AS (
       SELECT coalesce(min(sequence) FILTER (WHERE time >= now() - $2::int4 * interval '1 day'), max(sequence) + 1) AS kept FROM oldest
     )
     DELETE FROM audit_events USING ended WHERE tenant_id = $1 AND sequence < kept`,
    [tenantId, days, limit],
  );
  return rowCount ?? 0;
}

/** Returns the logs after one, in the order of their tenants. */
export async function listLogs(tx: Transaction, after: string | null, limit: number): Promise<string[]> {
  const { rows } = await tx.query<{ tenant_id: string }>(
    `SELECT tenant_id FROM audit_heads WHERE $1::text IS NULL OR tenant_id > $1 ORDER BY tenant_id LIMIT $2`,
    [after, limit],
  );
  return rows.map((row) => row.tenant_id);
}

/** The head of a chain, for anchoring. */
export interface HeadToAnchor {
  readonly tenantId: string;
  readonly sequence: number;
  readonly hash: string;
}

/** Returns heads with new events that were last anchored before a time. */
export async function headsToAnchor(tx: Transaction, before: Date, limit: number): Promise<HeadToAnchor[]> {
  const { rows } = await tx.query<{ tenant_id: string; sequence: number; hash: Buffer }>(
    `SELECT tenant_id, sequence, hash FROM audit_heads
     WHERE sequence > anchored_sequence AND tenant_id <> '' AND (anchored_at IS NULL OR anchored_at <= $1)
     ORDER BY anchored_at NULLS FIRST LIMIT $2`,
    [before, limit],
  );
  return rows.map((row) => ({ tenantId: row.tenant_id, sequence: row.sequence, hash: row.hash.toString('hex') }));
}

/** A head that was anchored by a leaf. */
export interface AnchoredRow extends HeadToAnchor {
  readonly dataHash: string;
  readonly time: Date;
}

/**
 * Records heads that were anchored. When they were is not later than by the database's clock: else a process whose clock was ahead would
 * keep the others from anchoring until then.
 */
export async function storeAnchors(tx: Transaction, anchors: readonly AnchoredRow[]): Promise<void> {
  await tx.query(
    `WITH added AS (
       INSERT INTO audit_anchors (tenant_id, sequence, hash, data_hash, time)
       SELECT * FROM unnest($1::text[], $2::int4[], $3::bytea[], $4::bytea[], $5::timestamptz[])
       ON CONFLICT DO NOTHING
     )
     UPDATE audit_heads head SET anchored_sequence = anchor.sequence, anchored_at = least(anchor.time, now())
     FROM unnest($1::text[], $2::int4[], $5::timestamptz[]) AS anchor (tenant_id, sequence, time)
     WHERE head.tenant_id = anchor.tenant_id`,
    [
      anchors.map(({ tenantId }) => tenantId),
      anchors.map(({ sequence }) => sequence),
      anchors.map(({ hash }) => Buffer.from(hash, 'hex')),
      anchors.map(({ dataHash }) => Buffer.from(dataHash, 'hex')),
      anchors.map(({ time }) => time),
    ],
  );
}

/** Lists the anchored events of a tenant before a sequence, newest first. */
export async function listAnchors(
  tx: Transaction,
  tenantId: string,
  before: number | undefined,
  limit: number,
): Promise<AnchoredRow[]> {
  const { rows } = await tx.query<{ sequence: number; hash: Buffer; data_hash: Buffer; time: Date }>(
    `SELECT sequence, hash, data_hash, time FROM audit_anchors
     WHERE tenant_id = $1 AND ($2::int4 IS NULL OR sequence < $2) ORDER BY sequence DESC LIMIT $3`,
    [tenantId, before ?? null, limit],
  );
  return rows.map((row) => ({
    tenantId,
    sequence: row.sequence,
    hash: row.hash.toString('hex'),
    dataHash: row.data_hash.toString('hex'),
    time: row.time,
  }));
}

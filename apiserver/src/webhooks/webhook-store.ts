// The SQL of webhooks and their deliveries. Triggers record deliveries and add up their bytes (migrations/0140_kept_sums.sql).
import type { Busy } from '../platform/background/fair-worker.ts';
import type { Transaction } from '../platform/database/database.ts';
import { checkRoom, countedLimit } from '../platform/database/number-limits.ts';
import { failedPrecondition, notFound } from '../platform/errors.ts';
import { boundedCount } from '../platform/statements/bounded-count.ts';
import { tenantExists, tenantSuspendedOf } from '../policies/tenant-reader.ts';
import { retrySeconds } from './sending/retry-schedule.ts';

/** A row of the table webhooks. */
export interface WebhookRow {
  webhook_id: string;
  url: string;
  /** Sealed. */
  secret: string;
  events: string[];
  enabled: boolean;
  is_full: boolean;
  last_error: string;
  created_at: Date;
  updated_at: Date;
}

/** What callers set of a webhook. */
export type WebhookDefinition = Pick<WebhookRow, 'url' | 'secret' | 'events' | 'enabled'>;

/** A row of the table webhook_deliveries. */
export interface DeliveryRow {
  delivery_id: string;
  position: string;
  event_id: string;
  subject: string;
  status: 'pending' | 'delivered' | 'dead';
  attempts: number;
  last_status: number;
  next_at: Date | null;
  created_at: Date;
}

/** A delivery to be attempted. */
export interface ClaimedDelivery {
  readonly tenant_id: string;
  readonly webhook_id: string;
  readonly delivery_id: string;
  readonly event: string;
  /** Attempts including this one. */
  readonly attempts: number;
  readonly url: string;
  /** Sealed. */
  readonly secret: string;
}

/** Webhooks of one tenant. */
const webhookLimit = countedLimit('tenant', 'SELECT FROM webhooks WHERE tenant_id = $1', 20, 'webhooks');

/** Delivered and dead deliveries kept for one webhook, their bytes, and for how long. */
export const maximumFinished = { number: 10_000, bytes: 8 * 1024 * 1024 };
const retentionDays = 30;

/** A claim not settled by then is void: its process has died. */
const claimSeconds = 30;

const webhookColumns = 'webhook_id, url, secret, events, enabled, is_full, last_error, created_at, updated_at';
const deliveryColumns = `delivery_id, position::text, event_id, subject, status, attempts, last_status,
  CASE WHEN status = 'pending' THEN next_at END AS next_at, created_at`;

/** Creates a webhook. Throws RESOURCE_EXHAUSTED if the tenant has too many. */
export async function insertWebhook(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  { url, secret, events, enabled }: WebhookDefinition,
): Promise<WebhookRow> {
  await checkRoom(tx, [tenantId], webhookLimit);
  const { rows } = await tx.query<WebhookRow & Record<string, unknown>>(
    `INSERT INTO webhooks (tenant_id, webhook_id, url, secret, events, enabled) VALUES ($1, $2, $3, $4, $5, $6)
     RETURNING ${webhookColumns}`,
    [tenantId, webhookId, url, secret, events, enabled],
  );
  return rows[0]!;
}

/** Returns a webhook. Throws NOT_FOUND. */
export async function findWebhook(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<WebhookRow> {
  const { rows } = await tx.query<WebhookRow & Record<string, unknown>>(
    `SELECT ${webhookColumns} FROM webhooks WHERE tenant_id = $1 AND webhook_id = $2 ${lock}`,
    [tenantId, webhookId],
  );
  if (!rows[0]) throw notFound('webhook');
  return rows[0];
}

/** Returns at most `limit` webhooks after one, in order of their ids. */
export async function listWebhooks(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  limit: number,
): Promise<WebhookRow[]> {
  const { rows } = await tx.query<WebhookRow & Record<string, unknown>>(
    `SELECT ${webhookColumns} FROM webhooks WHERE tenant_id = $1 AND ($2::uuid IS NULL OR webhook_id > $2)
     ORDER BY webhook_id LIMIT $3`,
    [tenantId, after ?? null, limit],
  );
  return rows;
}

/** Changes a webhook, which the transaction has locked. */
export async function updateWebhook(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  { url, secret, events, enabled }: WebhookDefinition,
): Promise<WebhookRow> {
  const { rows } = await tx.query<WebhookRow & Record<string, unknown>>(
    `UPDATE webhooks SET url = $3, secret = $4, events = $5, enabled = $6, updated_at = now()
     WHERE tenant_id = $1 AND webhook_id = $2 RETURNING ${webhookColumns}`,
    [tenantId, webhookId, url, secret, events, enabled],
  );
  return rows[0]!;
}

/** Deletes a webhook with its deliveries. Throws NOT_FOUND. */
export async function deleteWebhook(tx: Transaction, tenantId: string, webhookId: string): Promise<void> {
  const { rowCount } = await tx.query('DELETE FROM webhooks WHERE tenant_id = $1 AND webhook_id = $2', [
    tenantId,
    webhookId,
  ]);
  if (rowCount === 0) throw notFound('webhook');
}

/** Returns at most `limit` deliveries of a webhook before a position (undefined: all), latest first. */
export async function listDeliveries(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  before: string | undefined,
  limit: number,
): Promise<DeliveryRow[]> {
  const { rows } = await tx.query<DeliveryRow & Record<string, unknown>>(
    // Qualified, because the column of the result with this name is text.
    `SELECT ${deliveryColumns} FROM webhook_deliveries d
     WHERE tenant_id = $1 AND webhook_id = $2 AND position < $3 ORDER BY d.position DESC LIMIT $4`,
    [tenantId, webhookId, before ?? '9223372036854775807', limit],
  );
  return rows;
}

/** Reports whether a webhook keeps deliveries of events of this name, which wait or can be sent again. */
export async function keepsEvents(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  name: string,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    'SELECT FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND subject = $3 LIMIT 1',
    [tenantId, webhookId, name],
  );
  return rowCount === 1;
}

/** Makes a delivery due with all its attempts. Throws NOT_FOUND, and FAILED_PRECONDITION if it is on its way anyway. */
export async function resendDelivery(
  tx: Transaction,
  tenantId: string,
  webhookId: string,
  deliveryId: string,
): Promise<DeliveryRow> {
  const { rows } = await tx.query<DeliveryRow & Record<string, unknown>>(
    `SELECT ${deliveryColumns} FROM webhook_deliveries
     WHERE tenant_id = $1 AND webhook_id = $2 AND delivery_id = $3 FOR UPDATE`,
    [tenantId, webhookId, deliveryId],
  );
  if (!rows[0]) throw notFound('delivery');
  if (rows[0].status === 'pending') throw failedPrecondition('the delivery is pending');
  const { rows: changed } = await tx.query<DeliveryRow & Record<string, unknown>>(
    `UPDATE webhook_deliveries SET status = 'pending', attempts = 0, next_at = now(), finished_at = NULL
     WHERE tenant_id = $1 AND delivery_id = $2 RETURNING ${deliveryColumns}`,
    [tenantId, deliveryId],
  );
  return changed[0]!;
}

/**
 * Claims up to `limit` due deliveries of enabled webhooks, at most `perWebhook` of each and none of the webhooks in
 * `except`; first those of tenants with few in `busy`. Those of a suspended tenant wait, and those of a deleted one are
 * never sent. The cost depends on the number of webhooks, not of deliveries that wait.
 */
export async function claimDeliveries(
  tx: Transaction,
  { limit, perWebhook, except, busy }: { limit: number; perWebhook: number; except: readonly string[]; busy: Busy },
): Promise<ClaimedDelivery[]> {
  const { rows } = await tx.query<ClaimedDelivery & Record<string, unknown>>(
    `WITH due AS (
       SELECT w.tenant_id, w.webhook_id, w.url, w.secret, d.position
       FROM webhooks w LEFT JOIN unnest($4::text[], $5::int4[]) AS busy (tenant, running) ON tenant = w.tenant_id, LATERAL (
         SELECT position, next_at FROM webhook_deliveries
         WHERE tenant_id = w.tenant_id AND webhook_id = w.webhook_id AND status = 'pending' AND next_at <= now()
         ORDER BY next_at, position LIMIT $2) AS d
       WHERE w.enabled AND w.webhook_id <> ALL($3::uuid[]) AND ${tenantExists('w')} AND NOT ${tenantSuspendedOf('w')}
       ORDER BY coalesce(running, 0), d.next_at LIMIT $1
     ), free AS (
       -- Those that others change or delete are left, because these have them in another order.
       SELECT d.tenant_id, d.webhook_id, d.position, due.url, due.secret
       FROM due JOIN webhook_deliveries d USING (tenant_id, webhook_id, position)
       WHERE d.status = 'pending' AND d.next_at <= now() FOR NO KEY UPDATE OF d SKIP LOCKED)
     UPDATE webhook_deliveries a
     SET attempts = a.attempts + 1, next_at = now() + interval '${claimSeconds} seconds'
     FROM free WHERE a.tenant_id = free.tenant_id AND a.webhook_id = free.webhook_id AND a.position = free.position
     RETURNING a.tenant_id, a.webhook_id, a.delivery_id, a.event, a.attempts, free.url, free.secret`,
    [limit, perWebhook, except, busy.tenants, busy.running],
  );
  return rows;
}

/** Records the result of an attempt. `error` is empty if it succeeded. */
export async function settleDelivery(
  tx: Transaction,
  claim: ClaimedDelivery,
  result: { readonly lastStatus: number; readonly error: string; readonly isDead: boolean },
): Promise<void> {
  const { tenant_id: tenantId, webhook_id: webhookId, delivery_id: deliveryId, attempts } = claim;
  const status = result.error === '' ? 'delivered' : result.isDead ? 'dead' : 'pending';
  // The webhook first, as when it is deleted with its deliveries.
  await Promise.all([
    tx.query(
      'UPDATE webhooks SET last_error = $3 WHERE tenant_id = $1 AND webhook_id = $2 AND last_error <> $3 AND NOT is_full',
      [tenantId, webhookId, result.error],
    ),
    tx.query(
      `UPDATE webhook_deliveries SET status = $3, last_status = $4,
         next_at = CASE WHEN $3 = 'pending' THEN now() + $5 * interval '1 second' END,
         finished_at = CASE WHEN $3 <> 'pending' THEN now() END
       WHERE tenant_id = $1 AND delivery_id = $2 AND attempts = $6 AND status = 'pending'`,
      [tenantId, deliveryId, status, result.lastStatus, retrySeconds(attempts), attempts],
    ),
  ]);
}

/** Removes deliveries after their time, some at once, and returns how many. */
export async function forgetOldDeliveries(tx: Transaction, limit: number): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM webhook_deliveries WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM webhook_deliveries WHERE finished_at < now() - interval '${retentionDays} days'
       ORDER BY finished_at LIMIT $1 FOR UPDATE SKIP LOCKED))`,
    [limit],
  );
  return rowCount ?? 0;
}

/** A webhook of any tenant. */
export interface WebhookKey {
  readonly tenant_id: string;
  readonly webhook_id: string;
}

/** A delivery counts as at least so many bytes (migrations/0140_kept_sums.sql). */
const leastDeliveryBytes = 300;

/**
 * Returns the webhooks that may have more finished deliveries than are kept, or be full, with the bytes of all their
 * deliveries.
 */
export async function webhooksToBound(tx: Transaction): Promise<(WebhookKey & { is_full: boolean; bytes: number })[]> {
  const { rows } = await tx.query<WebhookKey & { is_full: boolean; bytes: number } & Record<string, unknown>>(
    `SELECT tenant_id, webhook_id, is_full, bytes FROM webhooks,
       LATERAL (SELECT kept_sum(tenant_id, 'webhook_bytes', webhook_id)::float8 AS bytes) AS held
     WHERE is_full OR bytes > $1`,
    [Math.min(maximumFinished.number * leastDeliveryBytes, maximumFinished.bytes)],
  );
  return rows;
}

/** Removes finished deliveries beyond their number and bytes, and delivers further events if there is room for them. */
export async function boundDeliveries(
  tx: Transaction,
  { tenant_id: tenantId, webhook_id: webhookId }: WebhookKey,
  finished = maximumFinished,
): Promise<void> {
  // As when it is deleted with its deliveries.
  await tx.query('SELECT FROM webhooks WHERE tenant_id = $1 AND webhook_id = $2 FOR NO KEY UPDATE', [
    tenantId,
    webhookId,
  ]);
  await tx.query(
    `DELETE FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND status <> 'pending' AND position <= (
       SELECT position FROM (
         SELECT position, row_number() OVER latest AS number, sum(bytes) OVER latest AS bytes
         FROM webhook_deliveries WHERE tenant_id = $1 AND webhook_id = $2 AND status <> 'pending'
         WINDOW latest AS (ORDER BY position DESC ROWS UNBOUNDED PRECEDING)) AS kept
       WHERE number > $3 OR bytes > $4 ORDER BY position DESC LIMIT 1)`,
    [tenantId, webhookId, finished.number, finished.bytes],
  );
  // A trigger notes that there is none.
  await tx.query(
    `UPDATE webhooks SET is_full = false, last_error = ''
     WHERE tenant_id = $1 AND webhook_id = $2 AND is_full AND NOT webhook_is_full($1, $2)`,
    [tenantId, webhookId],
  );
}

/** Returns the numbers of deliveries of all tenants that wait, and that were given up and are still kept. */
export async function countDeliveries(tx: Transaction, status: 'pending' | 'dead'): Promise<number> {
  // The status is a literal, so that the plan has its index.
  const order = status === 'pending' ? 'tenant_id, webhook_id, next_at' : 'finished_at';
  const { rows } = await tx.query<{ deliveries: number }>(
    `SELECT ${boundedCount(`SELECT FROM webhook_deliveries WHERE status = '${status}' ORDER BY ${order}`)} AS deliveries`,
  );
  return rows[0]!.deliveries;
}

// The durable queue of actions. Every function works inside the caller's transaction.
import type { Busy } from '../../platform/background/fair-worker.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { boundedCount } from '../../platform/statements/bounded-count.ts';
import { columns } from '../../platform/statements/columns.ts';
import { waitingTenants } from '../../platform/statements/waiting-tenants.ts';
import { tenantExists, tenantSuspendedOf } from '../../policies/tenant-reader.ts';
import { retrySeconds } from '../../webhooks/sending/retry-schedule.ts';
import type { StoredAction } from '../rules/rule-store.ts';

/** An action to be queued. */
export interface NewAction {
  readonly actionId: string;
  readonly ruleId: string;
  readonly deviceId: string;
  /** Its place among the actions of the rule, from 0. */
  readonly place: number;
  /** The CloudEvent as JSON. */
  readonly event: string;
}

/** A claimed action. */
export interface ClaimedAction {
  readonly tenant_id: string;
  readonly action_id: string;
  readonly rule_id: string;
  readonly device_id: string;
  readonly action: StoredAction;
  readonly event: string;
  /** Attempts including this one. */
  readonly attempts: number;
  /** Whether the rule has been disabled or deleted since, or does not have the action any more. */
  readonly is_void: boolean;
}

/** Actions of one tenant that may wait, and their bytes; rules that would add more only count and raise alarms. */
const maxWaiting = { number: 10_000, bytes: 64 * 1024 * 1024 };

/** Actions that one statement adds, each with an event of up to 9 KiB. */
const actionsAtOnce = 100;

/** Dead actions of one tenant that are kept. */
const maxDead = 1000;

/** A claim not settled by then is void: its process has died. */
const claimSeconds = 30;

const retentionDays = 30;

/** Adds actions. Returns those left out because too many are waiting. */
export async function enqueueActions(
  tx: Transaction,
  tenantId: string,
  actions: readonly NewAction[],
): Promise<readonly NewAction[]> {
  if (actions.length === 0) return [];
  const { rows } = await tx.query<{ waiting: number; bytes: number }>(
    `SELECT count(*)::int4 AS waiting, coalesce(sum(bytes), 0)::float8 AS bytes FROM (
       SELECT bytes FROM rule_actions WHERE tenant_id = $1 AND dead_at IS NULL LIMIT ${maxWaiting.number}) AS w`,
    [tenantId],
  );
  // What a batch adds is limited too (evaluation/evaluate-batch.ts).
  const kept = rows[0]!.bytes < maxWaiting.bytes ? actions.slice(0, maxWaiting.number - rows[0]!.waiting) : [];
  if (kept.length === 0) return actions;
  for (const some of pagesOf(kept, actionsAtOnce)) {
    await tx.query(
      // The database copies the actions: those of a batch take twenty times their 32 MiB of JSON as objects.
      `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event)
       SELECT $1, a.action_id, a.rule_id, a.device_id, r.actions -> a.place, a.event
       FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::int4[], $6::text[]) AS a (action_id, rule_id, device_id, place, event)
       JOIN rules r ON r.tenant_id = $1 AND r.rule_id = a.rule_id
       WHERE a.place < jsonb_array_length(r.actions)`,
      [tenantId, ...columns(some, 'actionId', 'ruleId', 'deviceId', 'place', 'event')],
    );
  }
  return actions.slice(kept.length);
}

/**
 * Claims up to `limit` due actions, at most `perTenant` of each tenant and none of the tenants in `except`; first those
 * of tenants with few in `busy`. Those of a suspended tenant wait, and those of a deleted one are never taken. The cost
 * depends on the number of tenants with actions, not of actions that wait.
 */
export async function claimActions(
  tx: Transaction,
  { limit, perTenant, except, busy }: { limit: number; perTenant: number; except: readonly string[]; busy: Busy },
): Promise<ClaimedAction[]> {
  const { rows } = await tx.query<ClaimedAction & Record<string, unknown>>(
    `WITH RECURSIVE ${waitingTenants('rule_actions', 'dead_at IS NULL')},
     due AS (
       SELECT d.tenant_id, d.action_id
       FROM waiting w LEFT JOIN unnest($4::text[], $5::int4[]) AS busy (tenant, running) ON tenant = w.tenant_id, LATERAL (
         SELECT tenant_id, action_id, next_at FROM rule_actions
         WHERE tenant_id = w.tenant_id AND dead_at IS NULL AND next_at <= now() ORDER BY next_at LIMIT $2) AS d
       WHERE w.tenant_id <> ALL($3) AND ${tenantExists('w')} AND NOT ${tenantSuspendedOf('w')}
       ORDER BY coalesce(running, 0), d.next_at LIMIT $1
     ), free AS (
       -- Those that others change or delete are left: one tenant must not make the others wait.
       SELECT tenant_id, action_id FROM due JOIN rule_actions a USING (tenant_id, action_id)
       WHERE a.next_at <= now() FOR NO KEY UPDATE OF a SKIP LOCKED)
     UPDATE rule_actions a SET attempts = a.attempts + 1, next_at = now() + interval '${claimSeconds} seconds'
     FROM free WHERE a.tenant_id = free.tenant_id AND a.action_id = free.action_id
     RETURNING a.tenant_id, a.action_id, a.rule_id, a.device_id, a.action, a.event, a.attempts,
       NOT EXISTS (SELECT FROM rules r, jsonb_array_elements(r.actions) AS still
         WHERE r.tenant_id = a.tenant_id AND r.rule_id = a.rule_id AND enabled
           AND still - 'secret' = a.action - 'secret') AS is_void`,
    [limit, perTenant, except, busy.tenants, busy.running],
  );
  return rows;
}

/** Removes an action that is not to be taken. */
export async function dropAction(
  tx: Transaction,
  tenantId: string,
  { action_id: actionId }: ClaimedAction,
): Promise<void> {
  await tx.query('DELETE FROM rule_actions WHERE tenant_id = $1 AND action_id = $2', [tenantId, actionId]);
}

/** Removes an action that was taken, and its rule's error of earlier ones. */
export async function completeAction(tx: Transaction, tenantId: string, claim: ClaimedAction): Promise<void> {
  await Promise.all([
    dropAction(tx, tenantId, claim),
    tx.query(`UPDATE rule_reports SET action_error = '' WHERE tenant_id = $1 AND rule_id = $2 AND action_error <> ''`, [
      tenantId,
      claim.rule_id,
    ]),
  ]);
}

/**
 * Plans the next attempt of an action that failed, or gives it up; then the oldest dead ones beyond those kept are
 * deleted. The rule shows the error.
 */
export async function failAction(
  tx: Transaction,
  tenantId: string,
  claim: ClaimedAction,
  error: string,
  isDead: boolean,
): Promise<void> {
  await Promise.all([
    tx.query(
      `UPDATE rule_actions SET error = $3, next_at = now() + $4 * interval '1 second',
         dead_at = CASE WHEN $5 THEN now() END
       WHERE tenant_id = $1 AND action_id = $2`,
      [tenantId, claim.action_id, error, retrySeconds(claim.attempts), isDead],
    ),
    reportActionError(
      tx,
      tenantId,
      claim.rule_id,
      isDead ? `${error}; given up after ${claim.attempts} attempts` : error,
    ),
    isDead &&
      tx.query(
        `DELETE FROM rule_actions WHERE ctid = ANY(ARRAY(
           SELECT ctid FROM rule_actions WHERE tenant_id = $1 AND dead_at IS NOT NULL
           ORDER BY dead_at DESC OFFSET ${maxDead} LIMIT 100))`,
        [tenantId],
      ),
  ]);
}

/** Shows an error of actions on their rule, if it still exists. */
export async function reportActionError(
  tx: Transaction,
  tenantId: string,
  ruleId: string,
  error: string,
): Promise<void> {
  await tx.query(
    `INSERT INTO rule_reports (tenant_id, rule_id, action_error)
     SELECT tenant_id, rule_id, $3 FROM rules WHERE tenant_id = $1 AND rule_id = $2
     ON CONFLICT (tenant_id, rule_id) DO UPDATE SET action_error = excluded.action_error`,
    [tenantId, ruleId, error],
  );
}

/** Removes dead actions after their time, some at once. */
export async function forgetDeadActions(tx: Transaction): Promise<void> {
  await tx.query(
    `DELETE FROM rule_actions WHERE ctid = ANY(ARRAY(
       SELECT ctid FROM rule_actions WHERE dead_at < now() - interval '${retentionDays} days' LIMIT 1000))`,
  );
}

/** Returns the number of dead actions of all tenants. */
export async function countDeadActions(tx: Transaction): Promise<number> {
  const { rows } = await tx.query<{ dead: number }>(
    `SELECT ${boundedCount('SELECT FROM rule_actions WHERE dead_at IS NOT NULL ORDER BY dead_at')} AS dead`,
  );
  return rows[0]!.dead;
}

// Intents: the records of creations through REST. An intent becomes active in the transaction that writes the working
// copy, or is cancelled; never both.
import type { Kind } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database/database.ts';
import { isId } from '../platform/ids.ts';
import { RefusalError } from './applier.ts';

/** The record of a creation. */
export interface Intent {
  readonly tenantId: string;
  readonly intentId: string;
  readonly kind: Kind;
  readonly namespace: string;
  readonly name: string;
}

/** Records a pending intent that can be activated for this many milliseconds, by the database's clock. */
export async function openIntent(tx: Transaction, intent: Intent, milliseconds: number): Promise<void> {
  await tx.query(
    `INSERT INTO resource_intents (tenant_id, intent_id, kind, namespace, name, deadline)
     VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 millisecond')`,
    [intent.tenantId, intent.intentId, intent.kind, intent.namespace, intent.name, milliseconds],
  );
}

/**
 * Activates the intent of a resource in the transaction that writes the working copy, and limits that transaction: the
 * server terminates it at the intent's deadline, and rejects a later COMMIT. Returns whether this transaction activated
 * the intent: false if it was already active, if the resource has none, or if it is not in this database (as after
 * restoring the cluster elsewhere). Throws the refusal IntentCancelled if it was cancelled or its deadline has passed.
 */
export async function takeUpIntent(tx: Transaction, meta: ObjectMeta): Promise<boolean> {
  if (!isId(meta.intentId)) return false;
  const taken = await tx.query(
    `UPDATE resource_intents SET state = 'active', settled_at = clock_timestamp()
     WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending' AND deadline > clock_timestamp()
     RETURNING kellet_end_by(deadline)`,
    [meta.tenantId, meta.intentId],
  );
  if (taken.rowCount === 1) return true;
  const state = await intentState(tx, meta.tenantId, meta.intentId);
  if (state === undefined || state === 'active') return false;
  throw new RefusalError('IntentCancelled', 'the request that created this resource was cancelled');
}

/** Returns the state of an intent, or undefined if it does not exist. */
export async function intentState(
  tx: Transaction,
  tenantId: string,
  intentId: string,
): Promise<'pending' | 'active' | 'cancelled' | undefined> {
  if (!isId(intentId)) return undefined;
  const { rows } = await tx.query<{ state: 'pending' | 'active' | 'cancelled' }>(
    'SELECT state FROM resource_intents WHERE tenant_id = $1 AND intent_id = $2',
    [tenantId, intentId],
  );
  return rows[0]?.state;
}

/** Time limit of a cancellation, which waits for a transaction that is activating the intent. The caller retries. */
const cancelMilliseconds = 2000;

/** Cancels an intent unless it is active. Returns its final state. */
export async function cancelIntent(
  tx: Transaction,
  tenantId: string,
  intentId: string,
): Promise<'active' | 'cancelled'> {
  // Limited by the server: if only the client stopped waiting, its statement would stay queued for the row.
  await tx.query(`SELECT kellet_end_by(clock_timestamp() + $1 * interval '1 millisecond')`, [cancelMilliseconds]);
  await tx.query(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = clock_timestamp()
     WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending'`,
    [tenantId, intentId],
  );
  return (await intentState(tx, tenantId, intentId)) === 'active' ? 'active' : 'cancelled';
}

/** Cancels an intent if its deadline has passed. Returns its state (intentState). */
export async function cancelIfOverdue(
  tx: Transaction,
  tenantId: string,
  intentId: string,
): Promise<'pending' | 'active' | 'cancelled' | undefined> {
  if (!isId(intentId)) return undefined;
  await tx.query(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = clock_timestamp()
     WHERE (tenant_id, intent_id) IN (SELECT tenant_id, intent_id FROM resource_intents
       WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending' AND deadline < clock_timestamp()
       FOR UPDATE SKIP LOCKED)`,
    [tenantId, intentId],
  );
  return intentState(tx, tenantId, intentId);
}

/** Deletes a pending intent whose resource the API server has refused: there is nothing that could be applied. */
export async function forgetIntent(tx: Transaction, tenantId: string, intentId: string): Promise<void> {
  await tx.query(`DELETE FROM resource_intents WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending'`, [
    tenantId,
    intentId,
  ]);
}

/** How long a resource of a cancelled intent is searched for, because the request to the API server may arrive late. */
const lateArrival = `interval '2 minutes'`;

/** How long settled intents are kept, by which the operator has seen the resources of cancelled ones, and has deleted them. */
const keptFor = `interval '7 days'`;

/**
 * Cancels overdue intents whose process died, and deletes those that were settled long ago. Returns all recently cancelled
 * intents, because their resources may since have been created in the cluster.
 */
export async function cancelOverdueIntents(tx: Transaction): Promise<Intent[]> {
  for (const state of ['active', 'cancelled'] as const) {
    // As in the indexes, which are partial.
    await tx.query(`DELETE FROM resource_intents WHERE state = '${state}' AND settled_at < now() - ${keptFor}`);
  }
  await tx.query(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = now()
     WHERE state = 'pending' AND deadline < now() - interval '5 seconds'`,
  );
  const { rows } = await tx.query<{
    tenant_id: string;
    intent_id: string;
    kind: Kind;
    namespace: string;
    name: string;
  }>(
    `SELECT tenant_id, intent_id, kind, namespace, name FROM resource_intents
     WHERE state = 'cancelled' AND settled_at > now() - ${lateArrival} ORDER BY settled_at LIMIT 1000`,
  );
  return rows.map((row) => ({
    tenantId: row.tenant_id,
    intentId: row.intent_id,
    kind: row.kind,
    namespace: row.namespace,
    name: row.name,
  }));
}

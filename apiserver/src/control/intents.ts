// Creations through REST: each is an intent that either becomes active with the working copy, in one transaction, or is
// cancelled by its deadline; exactly one of the two wins (DECISIONS 13).
import type { Kind } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database.ts';
import { isId } from '../platform/ids.ts';
import { RefusalError } from './applier.ts';

/** A creation that waits for its resource to be taken up. */
export interface Intent {
  readonly tenantId: string;
  readonly intentId: string;
  readonly kind: Kind;
  readonly namespace: string;
  readonly name: string;
}

/** Writes a pending intent that may be taken up within so many milliseconds, by the database's clock. */
export async function openIntent(tx: Transaction, intent: Intent, milliseconds: number): Promise<void> {
  await tx.query(
    `INSERT INTO resource_intents (tenant_id, intent_id, kind, namespace, name, deadline)
     VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 millisecond')`,
    [intent.tenantId, intent.intentId, intent.kind, intent.namespace, intent.name, milliseconds],
  );
}

/**
 * Says, inside the transaction that writes the working copy, that the resource of a REST creation is taken up. Throws the
 * refusal IntentCancelled when the creation was cancelled or its deadline has passed. A resource without an intent, or with
 * one that this database never had (it was restored elsewhere), is nobody's creation in progress and passes.
 */
export async function takeUpIntent(tx: Transaction, meta: ObjectMeta): Promise<void> {
  if (!isId(meta.intentId)) return;
  const taken = await tx.query(
    `UPDATE resource_intents SET state = 'active', settled_at = clock_timestamp()
     WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending' AND deadline > clock_timestamp()`,
    [meta.tenantId, meta.intentId],
  );
  if (taken.rowCount === 1) return;
  const state = await intentState(tx, meta.tenantId, meta.intentId);
  if (state === undefined || state === 'active') return;
  throw new RefusalError('IntentCancelled', 'the request that created this resource was cancelled');
}

/** How a creation stands; undefined when there is none with this id. */
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

/** Cancels a creation unless it was taken up; answers which of the two it is. */
export async function cancelIntent(
  tx: Transaction,
  tenantId: string,
  intentId: string,
): Promise<'active' | 'cancelled'> {
  await tx.query(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = clock_timestamp()
     WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending'`,
    [tenantId, intentId],
  );
  return (await intentState(tx, tenantId, intentId)) === 'active' ? 'active' : 'cancelled';
}

/**
 * Cancels creations whose process did not live to do it, and forgets old ones that were taken up; answers those cancelled.
 * Cancelled ones are kept: their resource may still lie in the cluster and must not be taken for a new one.
 */
export async function cancelOverdueIntents(tx: Transaction): Promise<Intent[]> {
  await tx.query(`DELETE FROM resource_intents WHERE state = 'active' AND settled_at < now() - interval '7 days'`);
  const { rows } = await tx.query<{
    tenant_id: string;
    intent_id: string;
    kind: Kind;
    namespace: string;
    name: string;
  }>(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = now()
     WHERE state = 'pending' AND deadline < now() - interval '5 seconds'
     RETURNING tenant_id, intent_id, kind, namespace, name`,
  );
  return rows.map((row) => ({
    tenantId: row.tenant_id,
    intentId: row.intent_id,
    kind: row.kind,
    namespace: row.namespace,
    name: row.name,
  }));
}

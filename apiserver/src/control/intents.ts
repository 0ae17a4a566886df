// Creations through REST: each is an intent that either becomes active with the working copy, in one transaction, or is
// cancelled; exactly one of the two wins.
import type { Kind } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database/database.ts';
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
 * Marks the creation behind a resource as taken up, inside the transaction that writes the working copy, and bounds that
 * transaction: the server ends it at the creation's deadline, and refuses its COMMIT after that. Returns whether this
 * transaction is the one that takes the creation up. A resource without an intent, or with one that this database never had
 * (it was restored elsewhere), is nobody's creation in progress: false. Throws the refusal IntentCancelled when the creation
 * was cancelled or its deadline has passed.
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

/** How long a cancellation waits for the transaction that is taking the creation up before it is asked for again. */
const cancelMilliseconds = 2000;

/** Cancels a creation unless it was taken up; returns which of the two it is. */
export async function cancelIntent(
  tx: Transaction,
  tenantId: string,
  intentId: string,
): Promise<'active' | 'cancelled'> {
  // Bounded by the server: a client that stops waiting would leave its statement behind in the queue for the row.
  await tx.query(`SELECT kellet_end_by(clock_timestamp() + $1 * interval '1 millisecond')`, [cancelMilliseconds]);
  await tx.query(
    `UPDATE resource_intents SET state = 'cancelled', settled_at = clock_timestamp()
     WHERE tenant_id = $1 AND intent_id = $2 AND state = 'pending'`,
    [tenantId, intentId],
  );
  return (await intentState(tx, tenantId, intentId)) === 'active' ? 'active' : 'cancelled';
}

/** How a creation stands (intentState), once it is cancelled if its deadline has passed. */
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

/** For how long a resource of a cancelled creation is looked for: a request to the API server may arrive late. */
const lateArrival = `interval '2 minutes'`;

/**
 * Cancels creations whose process did not live to do it, and forgets old ones that were taken up. Returns those cancelled a
 * short while ago, by whomever: their resource may have arrived in the cluster since. Cancelled ones are kept: a resource of
 * theirs must never be taken for a new one.
 */
export async function cancelOverdueIntents(tx: Transaction): Promise<Intent[]> {
  await tx.query(`DELETE FROM resource_intents WHERE state = 'active' AND settled_at < now() - interval '7 days'`);
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

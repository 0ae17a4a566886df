// What callers may do, judged again within the transaction of a call that grants access.
import type { Transaction } from '../../platform/database/database.ts';
import { permissionDenied, unauthenticated } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';
import { rightsBeyond, rightsOf } from '../roles/rights.ts';
import { isKeyInForce, sessionState } from './credential-store.ts';

/**
 * Throws UNAUTHENTICATED if the key or the session of the caller was ended since the call was admitted, and PERMISSION_DENIED if a user
 * has lost rights since, or belongs to another customer: the call may have waited, and what it grants would outlast what the caller has lost.
 */
export async function refuseLosses(tx: Transaction, caller: Caller): Promise<void> {
  if (caller.kind === 'service' && !(await isKeyInForce(tx, caller.userId))) throw unauthenticated();
  if (caller.kind !== 'user') return;
  const session = await sessionState(tx, caller.sessionId);
  if (!session || session.revoked || session.user_disabled) throw unauthenticated();
  if ((session.customer_id ?? '') !== caller.customerId) {
    throw permissionDenied('the caller now belongs to another customer, or to none');
  }
  const lost = rightsBeyond(caller, rightsOf(session.role, session.grants));
  if (lost.length > 0) throw permissionDenied(`the caller has lost scopes meanwhile: ${lost.join(', ')}`);
}

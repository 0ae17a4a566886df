// Announces revoked credentials to all processes that cache them or serve streams on them.
import { revocationChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';

/** Returns the payload that revokes every access token of a session. */
export const sessionPayload = (sessionId: string): string => `session:${sessionId}`;

/** Returns the payload that causes every session of a user to be checked again. */
export const userPayload = (userId: string): string => `user:${userId}`;

/** Returns the payload that causes every credential of a tenant to be checked again. */
export const tenantPayload = (tenantId: string): string => `tenant:${tenantId}`;

/** Announces revocations if and when the transaction that makes them commits. */
export async function notifyRevoked(tx: Transaction, payloads: readonly string[]): Promise<void> {
  if (payloads.length === 0) return;
  await tx.query(`SELECT pg_notify('${revocationChannel}', payload) FROM unnest($1::text[]) AS payload`, [payloads]);
}

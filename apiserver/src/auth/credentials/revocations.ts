// How the end of a credential is told to everyone who holds it in memory or serves a stream on it.
import type { Transaction } from '../../platform/database/database.ts';

/**
 * The notification channel. The payload is the hex SHA-256 of a credential, or `session:<session id>` for every access token
 * of a session. What concerns a whole tenant is announced as a change of the tenant.
 */
export const revocationChannel = 'kellet_revocations';

/** The payload that stands for every access token of a session. */
export const sessionPayload = (sessionId: string): string => `session:${sessionId}`;

/** Announces revocations when, and only when, the transaction that carries them out commits. */
export async function notifyRevoked(tx: Transaction, payloads: readonly string[]): Promise<void> {
  if (payloads.length === 0) return;
  await tx.query(`SELECT pg_notify('${revocationChannel}', payload) FROM unnest($1::text[]) AS payload`, [payloads]);
}

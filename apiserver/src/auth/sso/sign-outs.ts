// Stores the sign-outs that providers announce, so that a sign-in that a provider confirmed before its sign-out, and that is still in
// progress, opens no session.
import { createHash } from 'node:crypto';
import { holdLock, providerSessionsLock } from '../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../platform/database/database.ts';
import type { LoggedOut } from './logout-claims.ts';

/** Longer than the completion of a sign-in takes. */
const rememberedSeconds = 600;

/** A provider of a tenant. */
interface ProviderName {
  readonly tenantId: string;
  readonly provider: string;
}

const hashOf = ({ tenantId, provider }: ProviderName, kind: string, value: string): Buffer =>
  createHash('sha256').update(['signed out', tenantId, provider, kind, value].join('\0')).digest();

/**
 * Records that a provider has signed someone out, for longer than any sign-in that has returned before takes. Waits until the
 * sessions that are being opened at this provider are open; the caller ends them afterwards, in the same transaction.
 */
export async function rememberSignOut(tx: Transaction, at: ProviderName, who: LoggedOut): Promise<void> {
  const { subject, session } = who;
  const hashes = [
    ...(session === undefined ? [] : [hashOf(at, 'session', session)]),
    // As for sessions: with one at the provider, only what began in that one, or in one that is not known.
    ...(subject === undefined ? [] : [hashOf(at, session === undefined ? 'person' : 'without session', subject)]),
  ];
  await holdLock(tx, providerSessionsLock(at.tenantId, at.provider));
  await tx.query(
    `INSERT INTO sso_returns (state_hash, tenant_id, expires_at)
     SELECT hash, $2, clock_timestamp() + $3 * interval '1 second' FROM unnest($1::bytea[]) hash
     ON CONFLICT (state_hash) DO UPDATE SET expires_at = excluded.expires_at`,
    [hashes, at.tenantId, rememberedSeconds],
  );
}

/**
 * Reports whether the provider has signed a person out since their sign-in returned, by the clock of the database. Further sign-outs
 * at this provider wait for the end of the transaction.
 */
export async function wasSignedOut(
  tx: Transaction,
  at: ProviderName,
  { subject, sid, returnedAt }: { readonly subject: string; readonly sid: string | null; readonly returnedAt: Date },
): Promise<boolean> {
  const hashes = [
    hashOf(at, 'person', subject),
    sid === null ? hashOf(at, 'without session', subject) : hashOf(at, 'session', sid),
  ];
  await holdLock(tx, providerSessionsLock(at.tenantId, at.provider));
  const { rows } = await tx.query(
    `SELECT FROM sso_returns WHERE state_hash = ANY($1) AND expires_at >= $2::timestamptz + $3 * interval '1 second' LIMIT 1`,
    [hashes, returnedAt, rememberedSeconds],
  );
  return rows.length > 0;
}

// Sign-ins whose first factor was right and that wait for the second, each known by its MFA token.
import { randomBytes } from 'node:crypto';
import type { Transaction } from '../../platform/database/database.ts';
import { deleteBefore } from '../../platform/statements/delete-before.ts';
import { credentialHash } from '../credentials/api-key-format.ts';
import type { FactorOwner } from './factor-store.ts';

const lifetimeMilliseconds = 5 * 60_000;

/** A person's session at a provider for single sign-on. */
export interface ProviderSession {
  readonly provider: string;
  /** The ID token of the sign-in, sealed; null if it is too long to be kept. */
  readonly idToken: string | null;
  /** The provider's name for it (the claim sid); null if it gave none. */
  readonly sid: string | null;
  /** When the provider got the settings that the person was judged by, for sign-ins that wait for a second factor. */
  readonly settingsOf?: Date;
}

/** A sign-in that waits for its second factor. */
export interface PendingSignIn {
  user_id: string;
  /** The WebAuthn challenge that waits for its assertion. */
  challenge: string | null;
  /** The session at the provider where the first step was, if any. */
  sso_provider: string | null;
  sso_id_token: string | null;
  sso_sid: string | null;
}

/** Stores a sign-in and returns its MFA token: 256 random bits, stored as a hash. */
export async function beginPending(
  tx: Transaction,
  owner: FactorOwner,
  now: number,
  atProvider?: ProviderSession,
): Promise<string> {
  const token = randomBytes(32).toString('base64url');
  await tx.query('DELETE FROM pending_sign_ins WHERE user_id = $1 AND expires_at <= $2', [owner.userId, new Date(now)]);
  await tx.query(
    `INSERT INTO pending_sign_ins (token_hash, user_id, tenant_id, expires_at, sso_provider, sso_id_token, sso_sid,
       sso_updated_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
    [
      credentialHash(token),
      owner.userId,
      owner.tenantId,
      new Date(now + lifetimeMilliseconds),
      atProvider?.provider ?? null,
      atProvider?.idToken ?? null,
      atProvider?.sid ?? null,
      atProvider?.settingsOf ?? null,
    ],
  );
  return token;
}

/**
 * Returns the sign-in of an MFA token, or undefined when there is none, it has expired, or the provider of its first
 * step has been changed or deleted since.
 */
export async function findPending(tx: Transaction, token: string, now: number): Promise<PendingSignIn | undefined> {
  const { rows } = await tx.query<PendingSignIn>(
    `SELECT p.user_id, p.challenge, p.sso_provider, p.sso_id_token, p.sso_sid FROM pending_sign_ins p
       LEFT JOIN sso_providers s ON s.tenant_id = p.tenant_id AND s.provider = p.sso_provider
     WHERE p.token_hash = $1 AND p.expires_at > $2
       AND (p.sso_updated_at IS NULL OR date_trunc('milliseconds', s.updated_at) = p.sso_updated_at)`,
    [credentialHash(token), new Date(now)],
  );
  return rows[0];
}

/** Sets the challenge of a sign-in; null ends it. */
export async function setChallenge(tx: Transaction, token: string, challenge: string | null): Promise<void> {
  await tx.query('UPDATE pending_sign_ins SET challenge = $2 WHERE token_hash = $1', [
    credentialHash(token),
    challenge,
  ]);
}

/** Ends a sign-in that is complete. */
export async function endPending(tx: Transaction, token: string): Promise<void> {
  await tx.query('DELETE FROM pending_sign_ins WHERE token_hash = $1', [credentialHash(token)]);
}

/** Ends all sign-ins of a user. */
export async function endPendingOfUser(tx: Transaction, userId: string): Promise<void> {
  await tx.query('DELETE FROM pending_sign_ins WHERE user_id = $1', [userId]);
}

/** Ends the sign-ins of a user whose first step was at a provider: in a session there, or in any (undefined). */
export async function endPendingAtProvider(
  tx: Transaction,
  userId: string,
  provider: string,
  sid: string | undefined,
): Promise<void> {
  await tx.query(
    `DELETE FROM pending_sign_ins
     WHERE user_id = $1 AND sso_provider = $2 AND ($3::text IS NULL OR sso_sid IS NULL OR sso_sid = $3)`,
    [userId, provider, sid ?? null],
  );
}

/** Deletes up to `limit` sign-ins that expired before a time. Returns their number. */
export const deleteExpiredPending = (tx: Transaction, before: Date, limit: number): Promise<number> =>
  deleteBefore(tx, { table: 'pending_sign_ins', key: 'token_hash', time: 'expires_at' }, before, limit);

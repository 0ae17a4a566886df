// SQL of second factors. All of it runs in system transactions, because a platform administrator has no tenant; every
// statement names the user.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { unauthenticated } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';
import { sessionState } from '../credentials/credential-store.ts';
import type { Passkey } from './passkeys.ts';
import { newRecoveryCodes, recoveryCodeHash } from './recovery-codes.ts';

/** A user with stored factors. */
export interface FactorOwner {
  readonly userId: string;
  /** Null for a platform administrator. */
  readonly tenantId: string | null;
}

/** A row of second_factors. */
export interface FactorRow {
  totp_secret: string | null;
  totp_last_step: number;
  pending_totp_secret: string | null;
  pending_totp_since: Date | null;
  registration_challenge: string | null;
  registration_session: string | null;
  registration_until: Date | null;
  failures: number;
  last_failure_at: Date | null;
  blocked_until: Date | null;
}

/** How a second factor can be proved (TokenResponse.mfa_methods). */
export type MfaMethod = 'totp' | 'webauthn' | 'recovery_code';

/** The account whose factors change. */
export interface FactorAccount {
  readonly user_id: string;
  readonly tenant_id: string | null;
  readonly email: string;
  readonly name: string;
  readonly mfa_enrolled: boolean;
}

/**
 * Locks a user's account and returns it, or undefined. Every transaction locks the account before the factors: SHARE to
 * prove a factor, NO KEY UPDATE to change one.
 */
export async function lockAccount(
  tx: Transaction,
  userId: string,
  mode: 'SHARE' | 'NO KEY UPDATE',
): Promise<FactorAccount | undefined> {
  const { rows } = await tx.query<FactorAccount>(
    `SELECT user_id, tenant_id, email, name, mfa_enrolled FROM users WHERE user_id = $1 AND NOT disabled FOR ${mode}`,
    [userId],
  );
  return rows[0];
}

/**
 * Locks the account of a caller who changes its own credentials, and returns it. Throws UNAUTHENTICATED if the account is gone or
 * disabled, or the session was ended while the call waited: another session may have enrolled the first factor meanwhile, or an
 * administrator ended this one.
 */
export async function lockOwnAccount(tx: Transaction, caller: Caller): Promise<FactorAccount> {
  const account = await lockAccount(tx, caller.userId, 'NO KEY UPDATE');
  const session = account && (await sessionState(tx, caller.sessionId));
  if (!session || session.revoked) throw unauthenticated();
  return account;
}

/** Returns a user's factors, locked, so that attempts take turns. Creates the row if it is missing. */
export async function lockFactors(tx: Transaction, owner: FactorOwner): Promise<FactorRow> {
  await tx.query('INSERT INTO second_factors (user_id, tenant_id) VALUES ($1, $2) ON CONFLICT DO NOTHING', [
    owner.userId,
    owner.tenantId,
  ]);
  const { rows } = await tx.query<FactorRow>(
    `SELECT totp_secret, totp_last_step, pending_totp_secret, pending_totp_since, registration_challenge,
       registration_session, registration_until, failures, last_failure_at, blocked_until
     FROM second_factors WHERE user_id = $1 FOR UPDATE`,
    [owner.userId],
  );
  return rows[0]!;
}

/** Runs a transaction on the account and the factors of a caller who changes them, both locked. */
export function onOwnFactors<T>(
  database: Database,
  caller: Caller,
  work: (tx: Transaction, account: FactorAccount, factors: FactorRow) => Promise<T>,
): Promise<T> {
  return database.system(async (tx) => {
    const account = await lockOwnAccount(tx, caller);
    const factors = await lockFactors(tx, { userId: caller.userId, tenantId: account.tenant_id });
    return work(tx, account, factors);
  });
}

/** Returns the methods with which a user can prove a second factor. */
export async function methodsOf(tx: Transaction, userId: string): Promise<MfaMethod[]> {
  const { rows } = await tx.query<Record<MfaMethod, boolean>>(
    `SELECT EXISTS (SELECT FROM second_factors WHERE user_id = $1 AND totp_secret IS NOT NULL) AS totp,
       EXISTS (SELECT FROM webauthn_credentials WHERE user_id = $1) AS webauthn,
       EXISTS (SELECT FROM recovery_codes WHERE user_id = $1) AS recovery_code`,
    [userId],
  );
  return (['totp', 'webauthn', 'recovery_code'] as const).filter((method) => rows[0]![method]);
}

/** Stores a sealed secret that waits for its first code. */
export async function storePendingTotp(tx: Transaction, userId: string, sealed: string, now: number): Promise<void> {
  await tx.query('UPDATE second_factors SET pending_totp_secret = $2, pending_totp_since = $3 WHERE user_id = $1', [
    userId,
    sealed,
    new Date(now),
  ]);
}

/** Replaces a user's authenticator app by the one that was waiting, whose code of `step` has been used. */
export async function confirmTotp(tx: Transaction, userId: string, step: number): Promise<void> {
  await tx.query(
    `UPDATE second_factors SET totp_secret = pending_totp_secret, totp_last_step = $2, pending_totp_secret = NULL,
       pending_totp_since = NULL WHERE user_id = $1`,
    [userId, step],
  );
}

/** Removes a user's authenticator app. */
export async function removeTotp(tx: Transaction, userId: string): Promise<void> {
  await tx.query('UPDATE second_factors SET totp_secret = NULL WHERE user_id = $1', [userId]);
}

/** Marks the codes up to a step as used. */
export async function useTotpStep(tx: Transaction, userId: string, step: number): Promise<void> {
  await tx.query('UPDATE second_factors SET totp_last_step = $2 WHERE user_id = $1', [userId, step]);
}

/** The registration of a security key that is in progress. */
export interface Registration {
  readonly challenge: string;
  readonly sessionId: string;
  readonly until: number;
}

/** Stores the registration in progress, or ends it. */
export async function storeRegistration(tx: Transaction, userId: string, begun: Registration | undefined) {
  await tx.query(
    `UPDATE second_factors SET registration_challenge = $2, registration_session = $3, registration_until = $4
     WHERE user_id = $1`,
    [userId, begun?.challenge ?? null, begun?.sessionId ?? null, begun ? new Date(begun.until) : null],
  );
}

/** A security key or passkey of a user. */
export interface OwnedPasskey extends Passkey {
  /** The user's name for it. */
  readonly name: string;
  readonly createdAt: Date;
  /** Null if it has completed no sign-in. */
  readonly lastUsedAt: Date | null;
}

/** Returns a user's security keys and passkeys, oldest first. */
export async function listPasskeys(tx: Transaction, userId: string): Promise<OwnedPasskey[]> {
  const { rows } = await tx.query<Omit<OwnedPasskey, 'counter'> & { readonly counter: bigint }>(
    `SELECT credential_id AS id, public_key AS "publicKey", counter, transports, name, created_at AS "createdAt",
       last_used_at AS "lastUsedAt"
     FROM webauthn_credentials WHERE user_id = $1 ORDER BY created_at, credential_id`,
    [userId],
  );
  return rows.map((row) => ({ ...row, counter: Number(row.counter) }));
}

/** Removes a security key or passkey. Reports whether there was one. */
export async function removePasskey(tx: Transaction, userId: string, id: string): Promise<boolean> {
  const { rowCount } = await tx.query('DELETE FROM webauthn_credentials WHERE user_id = $1 AND credential_id = $2', [
    userId,
    id,
  ]);
  return rowCount === 1;
}

/** Stores a security key or passkey. Reports whether it was new. */
export async function insertPasskey(
  tx: Transaction,
  owner: FactorOwner,
  passkey: Passkey,
  name: string,
  now: number,
): Promise<boolean> {
  const { rowCount } = await tx.query(
    `INSERT INTO webauthn_credentials
       (user_id, credential_id, tenant_id, name, public_key, counter, transports, created_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
    [
      owner.userId,
      passkey.id,
      owner.tenantId,
      name,
      Buffer.from(passkey.publicKey),
      passkey.counter,
      passkey.transports,
      new Date(now),
    ],
  );
  return rowCount === 1;
}

/** Notes that a security key was used. */
export async function usePasskey(tx: Transaction, userId: string, id: string, counter: number, now: number) {
  await tx.query(
    'UPDATE webauthn_credentials SET counter = $3, last_used_at = $4 WHERE user_id = $1 AND credential_id = $2',
    [userId, id, counter, new Date(now)],
  );
}

/** Replaces a user's recovery codes by new ones and returns these. */
export async function replaceRecoveryCodes(
  tx: Transaction,
  { user_id: userId, tenant_id: tenantId }: Pick<FactorAccount, 'user_id' | 'tenant_id'>,
): Promise<string[]> {
  const codes = newRecoveryCodes();
  await tx.query('DELETE FROM recovery_codes WHERE user_id = $1', [userId]);
  await tx.query(
    'INSERT INTO recovery_codes (user_id, tenant_id, code_hash) SELECT $1, $2, hash FROM unnest($3::bytea[]) AS h (hash)',
    [userId, tenantId, codes.map((code) => recoveryCodeHash(userId, code))],
  );
  return codes;
}

/** Returns the hashes of a user's unused recovery codes. */
export async function listRecoveryCodes(tx: Transaction, userId: string): Promise<Buffer[]> {
  const { rows } = await tx.query<{ code_hash: Buffer }>('SELECT code_hash FROM recovery_codes WHERE user_id = $1', [
    userId,
  ]);
  return rows.map((row) => row.code_hash);
}

/** Deletes a recovery code that has been used. */
export async function useRecoveryCode(tx: Transaction, userId: string, hash: Buffer): Promise<void> {
  await tx.query('DELETE FROM recovery_codes WHERE user_id = $1 AND code_hash = $2', [userId, hash]);
}

/** Returns the users of an e-mail address, of a tenant or of all (null), with so many failed attempts or more, and locks these. */
export async function lockDelayedFactors(
  tx: Transaction,
  email: string,
  tenantId: string | null,
  failures: number,
): Promise<string[]> {
  const { rows } = await tx.query<{ user_id: string }>(
    `SELECT user_id FROM second_factors f JOIN users u USING (user_id)
     WHERE lower(email) = lower($1) AND ($2::text IS NULL OR u.tenant_id = $2) AND f.failures >= $3
     ORDER BY user_id FOR UPDATE OF f`,
    [email, tenantId, failures],
  );
  return rows.map((row) => row.user_id);
}

/** Records failed attempts, none after a success. */
export async function storeFailures(
  tx: Transaction,
  userId: string,
  failures: number,
  now: number,
  blockedSeconds: number,
): Promise<void> {
  await tx.query(
    'UPDATE second_factors SET failures = $2, last_failure_at = $3, blocked_until = $4 WHERE user_id = $1',
    [userId, failures, new Date(now), new Date(now + blockedSeconds * 1000)],
  );
}

/** Marks that a user has a second factor. */
export async function markEnrolled(tx: Transaction, userId: string): Promise<void> {
  await tx.query('UPDATE users SET mfa_enrolled = true, updated_at = now() WHERE user_id = $1', [userId]);
}

/** Removes all second factors of a tenant's user, with the sign-ins that wait for one. */
export async function removeFactors(tx: Transaction, tenantId: string, userId: string): Promise<void> {
  for (const table of ['second_factors', 'webauthn_credentials', 'recovery_codes', 'pending_sign_ins'] as const) {
    await tx.query(`DELETE FROM ${table} WHERE tenant_id = $1 AND user_id = $2`, [tenantId, userId]);
  }
}

// Sessions: opened by a sign-in, extended by refresh tokens that work once, ended by logout, reuse or revocation.
import { createHmac, randomBytes } from 'node:crypto';
import { checkAddress } from '../../platform/addresses/address-ranges.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import { resourceExhausted, tenantDeleted, tenantSuspended, unauthenticated } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { deleteBefore } from '../../platform/statements/delete-before.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import type { AccessTokens } from '../access-tokens/access-tokens.ts';
import { credentialHash } from '../credentials/api-key-format.ts';
import { mustEnrollFirst, type SessionState, sessionState } from '../credentials/credential-store.ts';
import { notifyRevoked, sessionPayload } from '../credentials/revocations.ts';
import { rightsOf } from '../roles/rights.ts';
import { endPendingOfUser, type ProviderSession } from '../second-factors/pending-sign-ins.ts';
import { decideRefresh, familyDays, refreshExpiry } from './refresh-decision.ts';
import type { SessionOrigin } from './session-origin.ts';
import type { SignInEvents } from './sign-in-events.ts';

/** The tokens that a sign-in or a refresh returns. */
export interface TokenPair {
  readonly accessToken: string;
  readonly expiresInSeconds: number;
  readonly refreshToken: string;
  /** Whether the tokens only permit enrolling a second factor, which the tenant requires. */
  readonly mustEnroll: boolean;
}

/** Authenticator assurance level of a session: with one factor or two. */
export type AssuranceLevel = 'aal1' | 'aal2';

/** How a session begins. */
export interface SessionStart {
  readonly aal: AssuranceLevel;
  /** The hash that the password matched: nothing begins once the user has another password. */
  readonly passwordHash?: string;
  /** The person's session at the provider where they signed in. */
  readonly atProvider?: ProviderSession;
  /** Reports, in the transaction that opens it, whether what the sign-in is based on is still true. */
  readonly holds?: (tx: Transaction) => Promise<boolean>;
}

/** A session whose access token is still to be signed. */
export interface OpenedSession {
  readonly session: SessionState;
  readonly refreshToken: string;
}

/** What sessions work with. */
export interface SessionParts {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly tokens: AccessTokens;
  readonly successorKey: Buffer;
  readonly events: SignInEvents;
}

/** Sessions of a user: a further one ends the oldest. */
export const maximumSessions = 1000;

/**
 * Exchanges of the refresh tokens of a session, at once and in a day. Each leaves a row for as long as the session lasts, and a client
 * needs four an hour. It need not be exact across processes.
 */
const exchanges = { burst: 300, perSecond: 300 / 86_400 };

/**
 * Sign-ins of a user, at once and in a day: each is in the audit log for more than a year, and does not count towards the tenant's
 * window of requests.
 */
const signIns = { burst: 300, perSecond: 10_000 / 86_400 };

type RefreshOutcome =
  | { readonly kind: 'pair'; readonly session: SessionState; readonly refreshToken: string }
  | { readonly kind: 'refused' }
  | { readonly kind: 'suspended' | 'deleted' }
  | { readonly kind: 'reused'; readonly session: SessionState };

/** Opens, refreshes and ends sessions. */
export class Sessions {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly tokens: AccessTokens;
  private readonly successorKey: Buffer;
  private readonly events: SignInEvents;
  private readonly allowance: TokenBuckets;
  private readonly signInAllowance: TokenBuckets;

  constructor(parts: SessionParts) {
    this.database = parts.database;
    this.clock = parts.clock;
    this.logger = parts.logger;
    this.tokens = parts.tokens;
    this.successorKey = parts.successorKey;
    this.events = parts.events;
    this.allowance = new TokenBuckets(parts.clock, exchanges);
    this.signInAllowance = new TokenBuckets(parts.clock, signIns);
  }

  /**
   * Opens a session for an authenticated user. Returns undefined if the user was deleted or disabled in the meantime, has
   * another password, or has enrolled a second factor that the sign-in lacks. Throws PERMISSION_DENIED for an address that the
   * tenant does not allow, and RESOURCE_EXHAUSTED for a user who has signed in too often.
   */
  async open(
    userId: string,
    origin: SessionOrigin,
    start: SessionStart = { aal: 'aal1' },
  ): Promise<TokenPair | undefined> {
    const opened = await retryConflicts(() =>
      this.database.frequentSystem((tx) => this.openWithin(tx, userId, origin, start)),
    );
    return opened && this.issue(opened);
  }

  /** As {@link open}, within a transaction; {@link issue} then signs the access token. */
  async openWithin(
    tx: Transaction,
    userId: string,
    origin: SessionOrigin,
    { aal, passwordHash, atProvider, holds }: SessionStart,
  ): Promise<OpenedSession | undefined> {
    if (holds && !(await holds(tx))) return undefined;
    const now = this.clock.now();
    const sessionId = newId();
    const familyExpiresAt = now + familyDays * 86_400_000;
    const refreshToken = randomBytes(32).toString('base64url');
    const inserted = tx.query(
      `WITH opened AS (
         INSERT INTO sessions (session_id, tenant_id, user_id, user_agent, ip, aal, created_at, last_used_at,
           authenticated_at, expires_at, sso_provider, sso_id_token, sso_sid)
         SELECT $1, tenant_id, user_id, $3, $4, $5, $6, $6, $6, $7, $8, $9, $11 FROM users
         WHERE user_id = $2 AND NOT disabled AND ($5 = 'aal2' OR NOT mfa_enrolled)
           AND ($10::text IS NULL OR password_hash = $10) FOR SHARE
         RETURNING session_id)
       INSERT INTO refresh_tokens (token_hash, session_id, expires_at) SELECT $12, session_id, $13 FROM opened`,
      [
        sessionId,
        userId,
        origin.userAgent.slice(0, 512),
        origin.address,
        aal,
        new Date(now),
        new Date(familyExpiresAt),
        atProvider?.provider ?? null,
        atProvider?.idToken ?? null,
        passwordHash ?? null,
        atProvider?.sid ?? null,
        credentialHash(refreshToken),
        new Date(refreshExpiry(now, familyExpiresAt)),
      ],
    );
    const [, session, beyond] = await Promise.all([
      inserted,
      sessionState(tx, sessionId),
      sessionsBeyond(tx, userId, maximumSessions),
    ]);
    if (!session) return undefined;
    // The caller has already proven their identity, so this reveals nothing.
    if (session.tenant_deleted) throw tenantDeleted();
    if (session.tenant_suspended) throw tenantSuspended();
    checkAddress(origin.address, session.tenant_ip_allowlist ?? []);
    const wait = this.signInAllowance.take(userId);
    if (wait > 0) throw resourceExhausted('the user has signed in too often', wait);
    if (beyond.length > 0) await revokeSessions(tx, beyond);
    await this.events.opened(tx, session, origin);
    return { session, refreshToken };
  }

  /**
   * Exchanges a refresh token. Of several concurrent exchanges one rotates and the others get the same successor.
   * Throws UNAUTHENTICATED, the same for every cause; PERMISSION_DENIED for an address that the tenant does not allow; and
   * RESOURCE_EXHAUSTED for a session whose tokens are exchanged too often. A reused token also ends the session.
   */
  async refresh(refreshToken: string, origin: SessionOrigin): Promise<TokenPair> {
    // Return the outcome from the transaction before throwing: ending a family must not be rolled back.
    const outcome = await this.database.system((tx) => this.exchange(tx, refreshToken, origin));
    if (outcome.kind === 'reused') {
      const { session_id: session, tenant_id: tenant, user_id: user } = outcome.session;
      this.logger.warn({ session, tenant, user }, 'a refresh token was used again: its session is revoked');
    }
    if (outcome.kind === 'deleted') throw tenantDeleted();
    if (outcome.kind === 'suspended') throw tenantSuspended();
    if (outcome.kind !== 'pair') throw unauthenticated('the refresh token is not valid: sign in again');
    return this.issue(outcome);
  }

  private async exchange(tx: Transaction, refreshToken: string, origin: SessionOrigin): Promise<RefreshOutcome> {
    if (!/^[A-Za-z0-9_-]{43}$/.test(refreshToken)) return { kind: 'refused' };
    const hash = credentialHash(refreshToken);
    const family = await tx.query<{ session_id: string }>(
      'SELECT session_id FROM refresh_tokens WHERE token_hash = $1',
      [hash],
    );
    const sessionId = family.rows[0]?.session_id;
    if (sessionId === undefined) return { kind: 'refused' };
    // The session's row is the lock of the family. Read the token after locking it: a statement that waits for a lock
    // would return the token's earlier state.
    const session = await sessionState(tx, sessionId, 'FOR UPDATE OF s');
    if (!session) return { kind: 'refused' };
    const { rows } = await tx.query<{
      expires_at: Date;
      used_at: Date | null;
      successor_hash: Buffer | null;
      successor_used: boolean;
    }>(
      `SELECT t.expires_at, t.used_at, t.successor_hash, s.used_at IS NOT NULL AS successor_used
       FROM refresh_tokens t LEFT JOIN refresh_tokens s ON s.token_hash = t.successor_hash WHERE t.token_hash = $1`,
      [hash],
    );
    const token = rows[0]!;
    const now = this.clock.now();
    const decision = decideRefresh({
      now,
      expiresAt: token.expires_at.getTime(),
      usedAt: token.used_at?.getTime(),
      successorUsed: token.successor_used,
      familyExpiresAt: session.expires_at.getTime(),
      familyRevoked: session.revoked,
      holderRefused: session.user_disabled,
    });
    // The refresh token is not used up, so it works again after the suspension or deletion, or from another address.
    const isValid = decision === 'rotate' || decision === 'repeat';
    if (isValid && session.tenant_deleted) return { kind: 'deleted' };
    if (isValid && session.tenant_suspended) return { kind: 'suspended' };
    // Nothing has been written so far, so nothing is rolled back.
    if (isValid) checkAddress(origin.address, session.tenant_ip_allowlist ?? []);
    const successor = this.successorOf(refreshToken);
    switch (decision) {
      case 'refuse':
        return { kind: 'refused' };
      case 'reuse':
        await revokeSessions(tx, [sessionId]);
        await this.events.reused(tx, session, origin);
        return { kind: 'reused', session };
      case 'repeat':
        // After a change of the server's key the old successor cannot be derived again; the holder must sign in.
        return token.successor_hash?.equals(credentialHash(successor))
          ? { kind: 'pair', session, refreshToken: successor }
          : { kind: 'refused' };
      case 'rotate': {
        const wait = this.allowance.take(sessionId);
        if (wait > 0) throw resourceExhausted('the tokens of the session were refreshed too often', wait);
        await insertRefreshToken(tx, successor, sessionId, refreshExpiry(now, session.expires_at.getTime()));
        await tx.query('UPDATE refresh_tokens SET used_at = $2, successor_hash = $3 WHERE token_hash = $1', [
          hash,
          new Date(now),
          credentialHash(successor),
        ]);
        await tx.query('UPDATE sessions SET last_used_at = $2 WHERE session_id = $1', [sessionId, new Date(now)]);
        return { kind: 'pair', session, refreshToken: successor };
      }
    }
  }

  /** Derives the successor of a token, which requires the token and the server's key. */
  private successorOf(refreshToken: string): string {
    return createHmac('sha256', this.successorKey).update(refreshToken).digest('base64url');
  }

  /** Signs an access token for a session. */
  async issue({ session, refreshToken }: OpenedSession): Promise<TokenPair> {
    const mustEnroll = mustEnrollFirst(session);
    const subject = {
      tenantId: session.tenant_id ?? '',
      userId: session.user_id,
      sessionId: session.session_id,
      role: session.role,
      scopes: mustEnroll ? [] : rightsOf(session.role, session.grants).scopes,
      aal: session.aal,
      authenticatedAt: session.authenticated_at.getTime(),
    };
    const { token, expiresInSeconds } = await this.tokens.issue(subject, session.expires_at.getTime());
    return { accessToken: token, expiresInSeconds, refreshToken, mustEnroll };
  }
}

/** Records that the user of a session has just proved a second factor, and evicts it from caches. */
export async function raiseSession(tx: Transaction, sessionId: string, now: number): Promise<void> {
  await tx.query(`UPDATE sessions SET aal = 'aal2', authenticated_at = $2 WHERE session_id = $1`, [
    sessionId,
    new Date(now),
  ]);
  await notifyRevoked(tx, [sessionPayload(sessionId)]);
}

/** Returns what a session can be ended with at the provider where it began, or undefined. Locks the session. */
export async function lockProviderSession(
  tx: Transaction,
  sessionId: string,
): Promise<{ provider: string; idToken: string } | undefined> {
  const { rows } = await tx.query<{ provider: string; idToken: string }>(
    `SELECT sso_provider AS provider, sso_id_token AS "idToken" FROM sessions
     WHERE session_id = $1 AND sso_id_token IS NOT NULL FOR UPDATE`,
    [sessionId],
  );
  return rows[0];
}

/**
 * Returns the sessions of a user that began at a provider: in a session there, or in any (undefined). Those of which it is not
 * known are among them.
 */
export async function sessionsAtProvider(
  tx: Transaction,
  userId: string,
  provider: string,
  sid: string | undefined,
): Promise<string[]> {
  const { rows } = await tx.query<{ session_id: string }>(
    `SELECT session_id FROM sessions
     WHERE user_id = $1 AND sso_provider = $2 AND revoked_at IS NULL
       AND ($3::text IS NULL OR sso_sid IS NULL OR sso_sid = $3)`,
    [userId, provider, sid ?? null],
  );
  return rows.map((row) => row.session_id);
}

/** Returns sessions of a user besides the newest `most` that were not ended: at most as many, because an earlier release had no maximum. */
async function sessionsBeyond(tx: Transaction, userId: string, most: number): Promise<string[]> {
  const { rows } = await tx.query<{ session_id: string }>(
    `SELECT session_id FROM sessions WHERE user_id = $1 AND revoked_at IS NULL ORDER BY session_id DESC OFFSET $2 LIMIT $2`,
    [userId, most],
  );
  return rows.map((row) => row.session_id);
}

/** Ends sessions with their access and refresh tokens, and forgets the ID tokens of a provider. */
export async function revokeSessions(tx: Transaction, sessionIds: readonly string[]): Promise<void> {
  await tx.query(
    `UPDATE sessions SET revoked_at = now(), sso_id_token = NULL
     WHERE session_id = ANY($1::uuid[]) AND revoked_at IS NULL`,
    [sessionIds],
  );
  await notifyRevoked(tx, sessionIds.map(sessionPayload));
}

/**
 * Ends every session of a user except one (empty: every one), and the sign-ins that wait for a second factor: their
 * first factor may be the one that was replaced.
 */
export async function revokeSessionsOfUser(tx: Transaction, userId: string, exceptSessionId: string): Promise<void> {
  await endPendingOfUser(tx, userId);
  const { rows } = await tx.query<{ session_id: string }>(
    `SELECT session_id FROM sessions WHERE user_id = $1 AND revoked_at IS NULL AND session_id::text <> $2`,
    [userId, exceptSessionId],
  );
  await revokeSessions(
    tx,
    rows.map((row) => row.session_id),
  );
}

async function insertRefreshToken(
  tx: Transaction,
  refreshToken: string,
  sessionId: string,
  expiresAt: number,
): Promise<void> {
  await tx.query('INSERT INTO refresh_tokens (token_hash, session_id, expires_at) VALUES ($1, $2, $3)', [
    credentialHash(refreshToken),
    sessionId,
    new Date(expiresAt),
  ]);
}

/** Deletes up to `limit` sessions that were ended before a time, with their tokens. Returns their number. */
export const deleteRevoked = (tx: Transaction, before: Date, limit: number): Promise<number> =>
  deleteBefore(tx, { table: 'sessions', key: 'session_id', time: 'revoked_at' }, before, limit);

/** Deletes up to `limit` sessions that expired before a time, with their tokens. Returns their number. */
export const deleteExpired = (tx: Transaction, before: Date, limit: number): Promise<number> =>
  deleteBefore(tx, { table: 'sessions', key: 'session_id', time: 'expires_at' }, before, limit);

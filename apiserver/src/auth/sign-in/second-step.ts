// The second step of a sign-in: users with a second factor get an MFA token after the first factor, and a session after both.
import { timingSafeEqual } from 'node:crypto';
import type { JsonObject } from '@bufbuild/protobuf';
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { resourceExhausted, unauthenticated } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { hasPasswordHash, type UserRow } from '../accounts/account-store.ts';
import {
  type FactorRow,
  listPasskeys,
  listRecoveryCodes,
  lockAccount,
  lockFactors,
  methodsOf,
  type MfaMethod,
  storeFailures,
  usePasskey,
  useRecoveryCode,
  useTotpStep,
} from '../second-factors/factor-store.ts';
import { assertionOptions, relyingPartyOf, verifyAssertion } from '../second-factors/passkeys.ts';
import {
  beginPending,
  endPending,
  findPending,
  type PendingSignIn,
  type ProviderSession,
  setChallenge,
} from '../second-factors/pending-sign-ins.ts';
import { recoveryCodeHash } from '../second-factors/recovery-codes.ts';
import { acceptedStep, isTotpCode } from '../second-factors/totp.ts';
import { delayAfter, pairRule } from './login-delay.ts';
import type { SessionOrigin } from './session-origin.ts';
import type { Sessions, SessionStart, TokenPair } from './sessions.ts';
import { isRefusal, type SignInEvents, type TriedAccount } from './sign-in-events.ts';

/** The result of a first factor. */
export type FirstStep =
  | { readonly kind: 'tokens'; readonly pair: TokenPair }
  | { readonly kind: 'second_factor'; readonly mfaToken: string; readonly methods: readonly MfaMethod[] };

/** What the second step works with. */
export interface SecondStepParts {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly sessions: Sessions;
  readonly events: SignInEvents;
  readonly secrets: SealedSecrets;
  readonly dashboardOrigin: string;
}

/** An attempt to prove a second factor: returns the method if it was right. */
type Proof = (tx: Transaction, factors: FactorRow, pending: PendingSignIn) => Promise<MfaMethod | undefined>;

type Outcome =
  | { readonly kind: 'opened'; readonly method: MfaMethod; readonly opened: Parameters<Sessions['issue']>[0] }
  | { readonly kind: 'refused'; readonly account?: TriedAccount }
  | { readonly kind: 'blocked'; readonly account: TriedAccount; readonly seconds: number };

/** Completes sign-ins. */
export class SecondStep {
  private readonly parts: SecondStepParts;

  constructor(parts: SecondStepParts) {
    this.parts = parts;
  }

  /**
   * Opens the session of a user whose first factor was right, or returns an MFA token if the user has a second one.
   * `first` is the first step: a provider may have asked for two factors. Returns undefined if the account was changed in
   * the meantime.
   */
  async begin(
    user: UserRow,
    origin: SessionOrigin,
    first: SessionStart = { aal: 'aal1' },
  ): Promise<FirstStep | undefined> {
    const { database, clock, sessions, events } = this.parts;
    if (!user.mfa_enrolled) {
      const pair = await sessions.open(user.user_id, origin, first);
      return pair && { kind: 'tokens', pair };
    }
    return database.system(async (tx) => {
      const owner = { userId: user.user_id, tenantId: user.tenant_id };
      if (first.holds && !(await first.holds(tx))) return undefined;
      if (!(await lockAccount(tx, owner.userId, 'SHARE'))) return undefined;
      const { passwordHash } = first;
      if (passwordHash !== undefined && !(await hasPasswordHash(tx, owner.userId, passwordHash))) return undefined;
      const mfaToken = await beginPending(tx, owner, clock.now(), first.atProvider);
      events.begun(user, origin);
      return { kind: 'second_factor', mfaToken, methods: await methodsOf(tx, owner.userId) };
    });
  }

  /**
   * Completes a sign-in with an authenticator code or a recovery code, each of which works once. Throws UNAUTHENTICATED,
   * the same for an unknown MFA token and a wrong code; RESOURCE_EXHAUSTED after too many failures of the user; and PERMISSION_DENIED
   * for an address that the tenant does not allow.
   */
  verify(mfaToken: string, code: string, origin: SessionOrigin): Promise<TokenPair> {
    const { clock } = this.parts;
    return this.complete(mfaToken, origin, async (tx, factors, { user_id: userId }) => {
      if (!isTotpCode(code.trim())) return (await spendRecoveryCode(tx, userId, code)) ? 'recovery_code' : undefined;
      if (factors.totp_secret === null) return undefined;
      const secret = this.openTotp(userId, factors.totp_secret);
      if (secret === undefined) return undefined;
      const step = acceptedStep(secret, code.trim(), clock.now(), factors.totp_last_step);
      if (step === undefined) return undefined;
      await useTotpStep(tx, userId, step);
      return 'totp';
    });
  }

  /** Returns a challenge for the user's security keys. Throws UNAUTHENTICATED for an unknown MFA token. */
  async beginWebauthn(mfaToken: string): Promise<JsonObject> {
    const { database, clock, dashboardOrigin } = this.parts;
    const party = relyingPartyOf(dashboardOrigin);
    return database.system(async (tx) => {
      const pending = await findPending(tx, mfaToken, clock.now());
      if (!pending) throw refused();
      const options = await assertionOptions(party, await listPasskeys(tx, pending.user_id));
      await setChallenge(tx, mfaToken, options.challenge);
      return options;
    });
  }

  /** Completes a sign-in with a security key's assertion. Throws as {@link verify} does. */
  finishWebauthn(mfaToken: string, response: JsonObject, origin: SessionOrigin): Promise<TokenPair> {
    const { clock, logger, dashboardOrigin } = this.parts;
    const party = relyingPartyOf(dashboardOrigin);
    return this.complete(mfaToken, origin, async (tx, _factors, { user_id: userId, challenge }) => {
      // Whatever the outcome, a challenge is used once.
      await setChallenge(tx, mfaToken, null);
      const passkey = (await listPasskeys(tx, userId)).find(({ id }) => id === response['id']);
      if (!passkey || challenge === null) return undefined;
      try {
        const counter = await verifyAssertion(party, challenge, passkey, response);
        await usePasskey(tx, userId, passkey.id, counter, clock.now());
        return 'webauthn';
      } catch (error) {
        // The reason tells an administrator whether an authenticator was copied (its counter did not advance).
        logger.warn({ user: userId, reason: (error as Error).message }, 'the assertion of a security key was refused');
        return undefined;
      }
    });
  }

  /** Returns the secret of an authenticator app, or undefined when it was encrypted with another key. */
  private openTotp(userId: string, sealed: string): string | undefined {
    try {
      return this.parts.secrets.open(userId, sealed);
    } catch (error) {
      this.parts.logger.error({ user: userId, err: error }, 'the secret of an authenticator app cannot be decrypted');
      return undefined;
    }
  }

  private async complete(mfaToken: string, origin: SessionOrigin, proof: Proof): Promise<TokenPair> {
    const { database, logger, sessions, events } = this.parts;
    // The outcome leaves the transaction before it is thrown: a failure must be counted, not rolled back.
    const outcome = await database.system((tx) => this.attempt(tx, mfaToken, origin, proof));
    if (outcome.kind !== 'opened') {
      const accounts = outcome.account ? [outcome.account] : [];
      const code = outcome.kind === 'blocked' ? 'RESOURCE_EXHAUSTED' : 'UNAUTHENTICATED';
      events.failed({ factor: secondFactor, accounts, email: '', code }, origin);
    }
    if (outcome.kind === 'blocked') {
      throw resourceExhausted('too many failed attempts: try again later', outcome.seconds);
    }
    if (outcome.kind === 'refused') throw refused();
    const { session } = outcome.opened;
    const who = { user: session.user_id, tenant: session.tenant_id, session: session.session_id };
    logger.info({ ...who, method: outcome.method }, 'signed in with a second factor');
    return sessions.issue(outcome.opened);
  }

  private async attempt(tx: Transaction, mfaToken: string, origin: SessionOrigin, proof: Proof): Promise<Outcome> {
    const { clock, logger, sessions, events } = this.parts;
    const now = clock.now();
    const named = await findPending(tx, mfaToken, now);
    const account = named && (await lockAccount(tx, named.user_id, 'SHARE'));
    if (!account) return { kind: 'refused' };
    const userId = account.user_id;
    const factors = await lockFactors(tx, { userId, tenantId: account.tenant_id });
    // Read again under the lock: another attempt may have completed the sign-in or used the challenge.
    const pending = await findPending(tx, mfaToken, now);
    if (!pending) return { kind: 'refused', account };
    const blocked = (factors.blocked_until?.getTime() ?? 0) - now;
    if (blocked > 0) return { kind: 'blocked', account, seconds: Math.ceil(blocked / 1000) };
    const method = await proof(tx, factors, pending);
    if (method === undefined) {
      // Counted per user, whatever the address: only callers who have proven the password reach this point.
      const isOld = (factors.last_failure_at?.getTime() ?? 0) < now - pairRule.forgetSeconds * 1000;
      const failures = isOld ? 1 : factors.failures + 1;
      await storeFailures(tx, userId, failures, now, delayAfter(failures, pairRule));
      logger.warn({ user: userId, tenant: account.tenant_id, failures }, 'a second factor was wrong');
      return { kind: 'refused', account };
    }
    await storeFailures(tx, userId, 0, now, 0);
    await endPending(tx, mfaToken);
    const atProvider = providerSessionOf(pending);
    const start: SessionStart = { aal: 'aal2', ...(atProvider && { atProvider }) };
    try {
      const opened = await sessions.openWithin(tx, userId, origin, start);
      return opened ? { kind: 'opened', method, opened } : { kind: 'refused', account };
    } catch (error) {
      if (isRefusal(error)) {
        events.failed({ factor: secondFactor, accounts: [account], email: '', code: error.code }, origin);
      }
      throw error;
    }
  }
}

const secondFactor = { kind: 'second_factor', id: '' } as const;

const providerSessionOf = ({
  sso_provider: provider,
  sso_id_token: idToken,
  sso_sid: sid,
}: PendingSignIn): ProviderSession | undefined => (provider === null ? undefined : { provider, idToken, sid });

/** Deletes the code if the user has it, comparing it with all of them in constant time. */
async function spendRecoveryCode(tx: Transaction, userId: string, code: string): Promise<boolean> {
  const given = recoveryCodeHash(userId, code);
  const matching = (await listRecoveryCodes(tx, userId)).filter((hash) => timingSafeEqual(hash, given));
  if (matching.length === 0) return false;
  await useRecoveryCode(tx, userId, given);
  return true;
}

const refused = () => unauthenticated('the code or the MFA token is not valid');

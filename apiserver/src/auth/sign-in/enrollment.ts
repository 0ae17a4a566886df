// Enrollment of second factors by their users: authenticator apps, security keys and passkeys.
import type { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { alreadyExists, failedPrecondition, invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import {
  confirmTotp,
  type FactorAccount,
  insertPasskey,
  listPasskeys,
  markEnrolled,
  onOwnFactors,
  replaceRecoveryCodes,
  storePendingTotp,
  storeRegistration,
} from '../second-factors/factor-store.ts';
import { registrationOptions, relyingPartyOf, verifyRegistration } from '../second-factors/passkeys.ts';
import { acceptedStep, newTotpSecret, otpauthUri } from '../second-factors/totp.ts';
import type { SecondStepParts } from './second-step.ts';
import { raiseSession, revokeSessionsOfUser } from './sessions.ts';

/** Time to complete an enrollment. */
const enrollmentMilliseconds = 15 * 60_000;
const maximumPasskeys = 20;

/** The handlers of `auth/mfa` that enroll; the gateway has checked that the caller's sign-in is recent (step_up). */
export function enrollmentHandlers(
  parts: Omit<SecondStepParts, 'sessions' | 'events'>,
): Implementation<typeof AuthService> {
  const { database, clock, logger, secrets, dashboardOrigin } = parts;

  /**
   * Makes the caller's session one with a second factor. A first factor also ends the user's other sessions, which were
   * opened without one.
   */
  const enrolled = async (tx: Transaction, caller: Caller, account: FactorAccount, method: string): Promise<void> => {
    if (!account.mfa_enrolled) {
      await markEnrolled(tx, caller.userId);
      await revokeSessionsOfUser(tx, caller.userId, caller.sessionId);
    }
    await raiseSession(tx, caller.sessionId, clock.now());
    logger.info({ user: caller.userId, tenant: account.tenant_id, method }, 'enrolled a second factor');
  };

  return {
    enrollTotp: (_request, { caller }) =>
      onOwnFactors(database, caller, async (tx, account) => {
        const secret = newTotpSecret();
        await storePendingTotp(tx, caller.userId, secrets.seal(caller.userId, secret), clock.now());
        const issuer = account.tenant_id === null ? 'Kellet' : `Kellet ${account.tenant_id}`;
        return { secret, otpauthUri: otpauthUri(secret, account.email, issuer) };
      }),

    confirmTotp: (request, { caller }) =>
      onOwnFactors(database, caller, async (tx, account, factors) => {
        const { pending_totp_secret: sealed, pending_totp_since: since } = factors;
        if (sealed === null || since === null || since.getTime() + enrollmentMilliseconds <= clock.now()) {
          throw failedPrecondition('no authenticator app is being enrolled: begin with POST /api/v1/auth/mfa/totp');
        }
        const secret = secrets.open(caller.userId, sealed);
        const step = acceptedStep(secret, request.code.trim(), clock.now(), 0);
        if (step === undefined) throw invalidArgument('code is not the current code of the authenticator app');
        await confirmTotp(tx, caller.userId, step);
        await enrolled(tx, caller, account, 'totp');
        return {
          recoveryCodes: await replaceRecoveryCodes(tx, account),
        };
      }),

    beginWebauthnRegistration: (_request, { caller }) => {
      const party = relyingPartyOf(dashboardOrigin);
      return onOwnFactors(database, caller, async (tx, { email, name }) => {
        const known = await listPasskeys(tx, caller.userId);
        if (known.length >= maximumPasskeys) {
          throw failedPrecondition(`a user has at most ${maximumPasskeys} security keys`);
        }
        const options = await registrationOptions(party, { userId: caller.userId, email, name }, known);
        const until = clock.now() + enrollmentMilliseconds;
        const begun = { challenge: options.challenge, sessionId: caller.sessionId, until };
        await storeRegistration(tx, caller.userId, begun);
        return { options };
      });
    },

    finishWebauthnRegistration: async (request, { caller }) => {
      const party = relyingPartyOf(dashboardOrigin);
      const name = textField('name', request.name, { maximum: 128 });
      const outcome = await onOwnFactors(database, caller, async (tx, account, factors) => {
        const { registration_challenge: challenge, registration_session: session, registration_until: until } = factors;
        // Whatever the outcome, a challenge is used once.
        await storeRegistration(tx, caller.userId, undefined);
        if (challenge === null || session !== caller.sessionId || until!.getTime() <= clock.now()) {
          return failedPrecondition('no security key is being registered: begin with register/begin');
        }
        const passkey = await verifyRegistration(party, challenge, request.response ?? {}).catch((error: unknown) =>
          invalidArgument(`response: ${(error as Error).message}`),
        );
        if (passkey instanceof Error) return passkey;
        const owner = { userId: caller.userId, tenantId: account.tenant_id };
        if (!(await insertPasskey(tx, owner, passkey, name, clock.now()))) {
          return alreadyExists('the security key is already registered');
        }
        await enrolled(tx, caller, account, 'webauthn');
        const recoveryCodes = account.mfa_enrolled ? [] : await replaceRecoveryCodes(tx, account);
        return { credentialId: passkey.id, recoveryCodes };
      });
      if (outcome instanceof Error) throw outcome;
      return outcome;
    },
  };
}

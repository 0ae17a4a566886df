// Shows and removes the caller's own second factors, and replaces the recovery codes.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, notFound } from '../../platform/errors.ts';
import type { Implementation } from '../../platform/rpc.ts';
import {
  listPasskeys,
  listRecoveryCodes,
  methodsOf,
  onOwnFactors,
  removePasskey,
  removeTotp,
  replaceRecoveryCodes,
} from '../second-factors/factor-store.ts';
import type { SecondStepParts } from './second-step.ts';

/** The handlers of `auth/mfa` for factors that are enrolled. The gateway has checked that the caller's sign-in is recent (step_up). */
export function ownFactorHandlers(
  parts: Pick<SecondStepParts, 'database' | 'logger'>,
): Implementation<typeof AuthService> {
  const { database, logger } = parts;

  /** Throws FAILED_PRECONDITION if a removal has left no factor but the recovery codes; its transaction is then undone. */
  const requireFactor = async (tx: Transaction, userId: string): Promise<void> => {
    const methods = await methodsOf(tx, userId);
    if (methods.includes('totp') || methods.includes('webauthn')) return;
    throw failedPrecondition('the last second factor cannot be removed: enroll another one first');
  };

  return {
    getSecondFactors: (_request, { caller }) =>
      database.systemRead(async (tx) => {
        const methods = await methodsOf(tx, caller.userId);
        const passkeys = await listPasskeys(tx, caller.userId);
        const recoveryCodes = await listRecoveryCodes(tx, caller.userId);
        return {
          totp: methods.includes('totp'),
          securityKeys: passkeys.map(({ id, name, createdAt, lastUsedAt }) => ({
            ...{ credentialId: id, name, createdAt: timestampFromDate(createdAt) },
            ...(lastUsedAt && { lastUsedAt: timestampFromDate(lastUsedAt) }),
          })),
          recoveryCodesLeft: recoveryCodes.length,
        };
      }),

    deleteTotp: (_request, { caller }) =>
      onOwnFactors(database, caller, async (tx, account, factors) => {
        if (factors.totp_secret === null) throw notFound('authenticator app');
        await removeTotp(tx, caller.userId);
        await requireFactor(tx, caller.userId);
        logger.info({ user: caller.userId, tenant: account.tenant_id, method: 'totp' }, 'removed a second factor');
        return {};
      }),

    deleteSecurityKey: (request, { caller }) =>
      onOwnFactors(database, caller, async (tx, account) => {
        if (!(await removePasskey(tx, caller.userId, request.credentialId))) throw notFound('security key');
        await requireFactor(tx, caller.userId);
        logger.info({ user: caller.userId, tenant: account.tenant_id, method: 'webauthn' }, 'removed a second factor');
        return {};
      }),

    replaceRecoveryCodes: (_request, { caller }) =>
      onOwnFactors(database, caller, async (tx, account) => {
        if (!account.mfa_enrolled) throw failedPrecondition('recovery codes come with a second factor: enroll one');
        return {
          recoveryCodes: await replaceRecoveryCodes(tx, account),
        };
      }),
  };
}

// Users change their own passwords.
import type { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { failedPrecondition, invalidArgument, unauthenticated } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { findEnabledAccount, replacePasswordHash } from '../accounts/account-store.ts';
import { checkNewPassword } from '../accounts/password-policy.ts';
import { hashPassword, verifyPassword } from '../accounts/passwords.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { lockOwnAccount } from '../second-factors/factor-store.ts';
import type { LoginThrottle } from './login-throttle.ts';
import { revokeSessionsOfUser } from './sessions.ts';

/**
 * The handler of `auth/password`. It uses system transactions, because a platform administrator has no tenant; every statement names
 * the user.
 */
export function ownPasswordHandlers(
  platform: AuthPlatform,
  throttle: LoginThrottle,
): Implementation<typeof AuthService> {
  const { config, database } = platform;
  return {
    changePassword: async ({ currentPassword, newPassword }, { caller, address }) => {
      const { tenantId, userId, sessionId, name: email } = caller;
      const current = textField('current_password', currentPassword, { minimum: 1, maximum: 1024 });
      const owner = addressBlock(address);
      // Counted like sign-ins: whoever has only an access token must not be able to guess the password here.
      const account = await throttle.attempt(
        email.toLowerCase(),
        address,
        (tx) => findEnabledAccount(tx, userId),
        async ([found]) => {
          if (!found) throw unauthenticated();
          const matching = await verifyPassword([found.password_hash], current, owner);
          return matching.length > 0 ? found : undefined;
        },
      );
      if (!account) throw invalidArgument('current_password is wrong');
      // Whoever sets a password for another asks for a change because the two know it.
      if (newPassword === current) throw invalidArgument('new_password must not be the current password');
      await checkNewPassword(newPassword, config, {
        field: 'new_password',
        words: [account.email, account.name, tenantId],
        owner: tenantId || owner,
      });
      const passwordHash = await hashPassword(newPassword, tenantId || owner);
      await database.system(async (tx) => {
        await lockOwnAccount(tx, caller);
        if (!(await replacePasswordHash(tx, userId, account.password_hash, passwordHash))) {
          throw failedPrecondition('the password was changed meanwhile');
        }
        await revokeSessionsOfUser(tx, userId, sessionId);
      });
      return {};
    },
  };
}

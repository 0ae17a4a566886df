// The handlers of `auth/lockouts`: accounts whose sign-ins are delayed after failures. They use system transactions,
// because failures are counted before it is known which tenant a sign-in is for; every query names the tenant.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { notFound } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import { isAccount } from '../accounts/account-store.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { lockDelayedFactors, storeFailures } from '../second-factors/factor-store.ts';
import { pairRule } from '../sign-in/login-delay.ts';
import type { LoginThrottle } from '../sign-in/login-throttle.ts';
import { checkMayManageUser } from './users.ts';

/** The handlers. */
export function lockoutHandlers(platform: AuthPlatform, throttle: LoginThrottle): Implementation<typeof AuthService> {
  const { database, clock, paging } = platform;
  return {
    listLockouts: async (request, { caller }) => {
      const tenantId = tenantOf(caller);
      const scope = [caller.tenantId, 'lockouts'];
      const page = paging.open<[string, string]>(request, scope);
      const rows = await database.systemRead((tx) => throttle.list(tx, tenantId, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, (row): [string, string] => [row.email, row.address]);
      return {
        nextPageToken: closed.nextPageToken,
        lockouts: closed.rows.map((row) => ({
          email: row.email,
          // If the e-mail address has accounts in several tenants, the address may be that of another tenant's user.
          address: tenantId === null || row.tenant_ids.length === 1 ? row.address : '',
          failures: row.failures,
          until: timestampFromDate(row.blocked_until),
        })),
      };
    },

    deleteLockout: async (request, { caller }) => {
      const email = textField('email', request.email.trim(), { minimum: 1, maximum: 254 }).toLowerCase();
      const tenantId = tenantOf(caller);
      await database.system(async (tx) => {
        if (!(await isAccount(tx, tenantId, email))) throw notFound('email');
        await throttle.clear(tx, email, tenantId);
        for (const userId of await lockDelayedFactors(tx, email, tenantId, pairRule.free)) {
          // Whoever also has the password of another user could guess codes without a delay.
          if (tenantId !== null) await checkMayManageUser(tx, tenantId, userId, caller);
          await storeFailures(tx, userId, 0, clock.now(), 0);
        }
      });
      return {};
    },
  };
}

/** Returns the tenant to which a caller is limited; null for a platform administrator. */
const tenantOf = (caller: Caller): string | null => (caller.kind === 'platform' ? null : caller.tenantId);

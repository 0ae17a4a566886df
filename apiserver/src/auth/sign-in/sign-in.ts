// Sign-in with e-mail and password: every failure has the same error after the same time.
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { sleep } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { KelletError, tenantDeleted, tenantSuspended, unauthenticated } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import { type AccountRow, findAccounts, replacePasswordHash } from '../accounts/account-store.ts';
import { hashPassword, isOutdated, verifyPassword } from '../accounts/passwords.ts';
import type { LoginThrottle } from './login-throttle.ts';
import type { FirstStep, SecondStep } from './second-step.ts';
import type { SessionOrigin } from './session-origin.ts';
import { isRefusal, type SignInEvents } from './sign-in-events.ts';

/** Input of a sign-in. */
export interface Credentials {
  readonly email: string;
  readonly password: string;
  /** Needed only when the same e-mail and password fit users of several tenants, or ten older users have the e-mail. */
  readonly tenantId: string;
}

/**
 * Minimum duration of a failed sign-in, from when its password is checked: longer than checking it against the maximum number of
 * accounts, and than what is recorded of the failure, which is more if there are accounts.
 */
const failureMilliseconds = 300;

/** The minimum duration of an attempt, once its password is being checked. */
interface Pace {
  floor?: Promise<void>;
}

/** Signs people in. */
export class SignIn {
  private readonly database: Database;
  private readonly throttle: LoginThrottle;
  private readonly secondStep: SecondStep;
  private readonly events: SignInEvents;

  constructor(database: Database, throttle: LoginThrottle, secondStep: SecondStep, events: SignInEvents) {
    this.database = database;
    this.throttle = throttle;
    this.secondStep = secondStep;
    this.events = events;
  }

  /**
   * Opens a session for the one account with that e-mail and password, or returns an MFA token if the account has a
   * second factor. Throws UNAUTHENTICATED, the same for a wrong password, an unknown or disabled account and
   * a password that fits several accounts; PERMISSION_DENIED for a suspended or deleted tenant, or an address that the tenant does
   * not allow; RESOURCE_EXHAUSTED with the time to wait after too many failures; UNAVAILABLE when too many passwords wait to be checked.
   */
  async login(credentials: Credentials, origin: SessionOrigin): Promise<FirstStep> {
    const email = textField('email', credentials.email.trim(), { minimum: 1, maximum: 254 });
    const password = textField('password', credentials.password, { minimum: 1, maximum: 1024 });
    const tenantId = textField('tenant_id', credentials.tenantId, { maximum: 63 });
    const pace: Pace = {};
    try {
      return await this.attempt({ email, password, tenantId }, origin, pace);
    } catch (error) {
      if (isRefusal(error)) {
        const accounts = await this.database.systemRead((tx) => findAccounts(tx, email, tenantId));
        this.events.failed({ factor: { kind: 'password', id: '' }, accounts, email, code: error.code }, origin);
        // The duration must not reveal how many accounts an e-mail has.
        await pace.floor;
      }
      throw error;
    }
  }

  private async attempt(
    credentials: Credentials,
    origin: SessionOrigin,
    pace: Pace,
    isAgain = false,
  ): Promise<FirstStep> {
    const { email, password, tenantId } = credentials;
    // The tenant is not part of the key: naming different tenants must not allow more attempts.
    const read = (tx: Transaction) => findAccounts(tx, email, tenantId);
    const account = await this.throttle.attempt(email.toLowerCase(), origin.address, read, async (found) => {
      pace.floor = sleep(failureMilliseconds);
      const hashes = found.map((one) => one.password_hash);
      const matching = await verifyPassword(hashes, password, addressBlock(origin.address));
      // Accounts of deleted tenants are ignored if there are others.
      const available = matching.filter((index) => !found[index]!.tenant_deleted);
      const candidates = available.length > 0 ? available : matching;
      return candidates.length === 1 ? found[candidates[0]!] : undefined;
    });
    // The caller has already proven the password, so this reveals nothing.
    if (account?.tenant_deleted) throw tenantDeleted();
    if (account?.tenant_suspended) throw tenantSuspended();
    const passwordHash = account?.password_hash ?? '';
    const begun = account && (await this.secondStep.begin(account, origin, { aal: 'aal1', passwordHash }));
    // Another sign-in may have hashed the same password again meanwhile.
    if (account && !begun && !isAgain && isOutdated(passwordHash)) return this.attempt(credentials, origin, pace, true);
    if (!begun) throw unauthenticated('e-mail or password is wrong');
    if (isOutdated(passwordHash)) await this.hashAgain(account, password, addressBlock(origin.address));
    return begun;
  }

  /** Hashes a password with the parameters of today, which only a sign-in can do. */
  private async hashAgain(account: AccountRow, password: string, owner: string): Promise<void> {
    try {
      const replacement = await hashPassword(password, owner);
      const { user_id: userId, password_hash: before } = account;
      await this.database.system((tx) => replacePasswordHash(tx, userId, before, replacement));
    } catch (error) {
      // Too many passwords wait, or the database is away: the next sign-in tries again.
      if (!(error instanceof KelletError)) throw error;
    }
  }
}

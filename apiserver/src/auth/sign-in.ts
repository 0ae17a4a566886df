// Sign-in with e-mail and password: one answer and the same work for every cause of failure.
import type { Database } from '../platform/database.ts';
import { unauthenticated } from '../platform/errors.ts';
import { textField } from '../platform/fields.ts';
import type { LoginThrottle } from './login-throttle.ts';
import { verifyPassword } from './passwords.ts';
import type { SessionOrigin, Sessions, TokenPair } from './sessions.ts';
import { findAccount } from './store.ts';

/** What a person gives to sign in. */
export interface Credentials {
  readonly email: string;
  readonly password: string;
  /** Needed only when the e-mail belongs to several tenants. */
  readonly tenantId: string;
}

/** Signs people in. */
export class SignIn {
  private readonly database: Database;
  private readonly throttle: LoginThrottle;
  private readonly sessions: Sessions;

  constructor(database: Database, throttle: LoginThrottle, sessions: Sessions) {
    this.database = database;
    this.throttle = throttle;
    this.sessions = sessions;
  }

  /**
   * Opens a session. Throws UNAUTHENTICATED, the same for a wrong password, an unknown or disabled account, a deleted tenant
   * and an e-mail of several tenants; RESOURCE_EXHAUSTED with the time to wait after too many failures.
   */
  async login(credentials: Credentials, origin: SessionOrigin): Promise<TokenPair> {
    const email = textField('email', credentials.email.trim(), { minimum: 1, maximum: 254 });
    const password = textField('password', credentials.password, { minimum: 1, maximum: 1024 });
    const tenantId = textField('tenant_id', credentials.tenantId, { maximum: 63 });
    // The tenant is left out of what is counted: naming tenants at will must not give more attempts.
    const account = await this.throttle.attempt(email.toLowerCase(), origin.address, async () => {
      const found = await this.database.systemRead((tx) => findAccount(tx, email, tenantId));
      const matches = await verifyPassword(found?.password_hash, password);
      return matches && !found?.disabled ? found : undefined;
    });
    if (!account) throw unauthenticated('e-mail or password is wrong');
    return this.sessions.open(account, origin);
  }
}

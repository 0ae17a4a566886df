// For tests: AuthService on a separate database, called through the registry.
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { unknownGroups } from '../../device-registry/devices/group-members.ts';
import { revocationChannel } from '../../platform/database/channels.ts';
import { newId } from '../../platform/ids.ts';
import { type CallContext, type Caller, internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createTenants } from '../../tenants/service.ts';
import { insertUser, type UserRow } from '../accounts/account-store.ts';
import { hashPassword } from '../accounts/passwords.ts';
import type { Role } from '../roles/roles.ts';
import { type AuthModule, createAuth } from '../service.ts';
import { insertTenant } from './test-fixtures.ts';
import { clusterAway, clusterWithoutTenants, MovableClock, newSigningKey, testPlatform } from './test-platform.ts';

/** The password of every account that the tests make. */
export const password = 'correct horse battery';
/** The origin for which security keys are made. */
export const dashboardOrigin = 'https://kellet.test:8443';
/** The platform administrator of the tests. */
export const platformAdministrator = 'root@platform.test';

export const { method } = AuthService;
type Method = (typeof method)[keyof typeof method];

/** The service with the tenants `acme` and `other`, started before the suite's tests and dropped after them. */
export class TestAuth {
  readonly clock = new MovableClock();
  readonly signingKey = newSigningKey();
  /** Payloads of the revocation channel. */
  readonly notified: string[] = [];
  readonly registry = new ServiceRegistry();
  test!: TestDatabase;
  auth!: AuthModule;
  /** Registers all of AuthService, the tenants' part included. */
  register!: (registry: ServiceRegistry) => void;
  private passwordHash = '';

  /** Adds the hooks to the suite that is being defined. */
  static define(): TestAuth {
    const one = new TestAuth();
    before(() => one.start());
    after(async () => {
      await one.auth.stop?.();
      await one.test.drop();
    });
    return one;
  }

  private async start(): Promise<void> {
    // Suites are defined long before they run, while the database's clock advances.
    this.clock.advance(Date.now() - this.clock.now());
    this.test = await createTestDatabase();
    const { database } = this.test;
    this.passwordHash = await hashPassword(password);
    for (const tenant of ['acme', 'other']) await insertTenant(database, tenant);
    const settings = {
      KELLET_JWT_PRIVATE_KEY: this.signingKey,
      KELLET_PLATFORM_ADMIN_EMAIL: platformAdministrator,
      KELLET_PLATFORM_ADMIN_PASSWORD: password,
      KELLET_DASHBOARD_ORIGIN: dashboardOrigin,
    };
    const platform = testPlatform(database, this.clock, settings);
    this.auth = createAuth(platform, clusterAway, unknownGroups, async () => []);
    this.register = (registry) => {
      this.auth.register(registry);
      createTenants(platform, clusterWithoutTenants, async () => ({})).register(registry);
    };
    this.register(this.registry);
    await this.auth.start?.();
    let listening = false;
    database.listen(
      [revocationChannel],
      (_, payload) => this.notified.push(payload),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
  }

  /** Calls a method; the tenant is the caller's unless the context says otherwise. */
  call<M extends Method>(
    asked: M,
    request: MessageInitShape<M['input']>,
    caller: Caller = publicCaller,
    context: Partial<CallContext> = {},
  ): Promise<MessageShape<M['output']>> {
    const message = create(asked.input, request) as MessageShape<M['input']>;
    return this.registry.unary(asked, message, internalContext(caller, context));
  }

  /** Makes a user with the common password. */
  async makeUser(role: Role = 'tenant_admin', tenantId = 'acme', email = `${newId()}@test`): Promise<UserRow> {
    const user = { userId: newId(), tenantId, email, name: '', role, passwordHash: this.passwordHash, disabled: false };
    return (await this.test.database.system((tx) => insertUser(tx, user)))!;
  }

  /** Signs in, from a separate address unless the test is about addresses. */
  login(email: string, given: { password?: string; tenantId?: string; address?: string } = {}) {
    const byte = () => Math.floor(Math.random() * 250);
    const request = { email, password: given.password ?? password, tenantId: given.tenantId ?? '' };
    return this.call(method.login, request, publicCaller, { address: given.address ?? `10.${byte()}.${byte()}.1` });
  }

  /** A new user with a session. */
  async signedIn(role: Role = 'tenant_admin', tenantId = 'acme') {
    const user = await this.makeUser(role, tenantId);
    const tokens = await this.login(user.email, { tenantId });
    return { user, tokens, caller: await this.auth.authenticate(tokens.accessToken, '127.0.0.1') };
  }

  /** Calls ValidateToken as the gateway does. */
  async validate(token: string) {
    const { grant, ...shown } = await this.call(method.validateToken, { token });
    return { ...shown, ...grant };
  }

  /** Disables a user without the service. */
  async disable(userId: string): Promise<void> {
    await this.test.database.system((tx) => tx.query('UPDATE users SET disabled = true WHERE user_id = $1', [userId]));
  }
}

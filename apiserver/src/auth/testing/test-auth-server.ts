// For tests: AuthService behind the real REST port, with the tenants `acme` and `other`.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { unknownGroups } from '../../device-registry/devices/group-members.ts';
import { Gateway } from '../../gateway/gateway.ts';
import { Health } from '../../gateway/http/health.ts';
import { Broker } from '../../platform/events/broker.ts';
import { newId } from '../../platform/ids.ts';
import { ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createTenants } from '../../tenants/service.ts';
import { insertUser } from '../accounts/account-store.ts';
import { hashPassword } from '../accounts/passwords.ts';
import type { Role } from '../roles/roles.ts';
import { createAuth } from '../service.ts';
import { insertTenant } from './test-fixtures.ts';
import { clusterAway, clusterWithoutTenants, MovableClock, testPlatform } from './test-platform.ts';

const password = 'correct horse battery';

/** The response to a request. */
export interface Result {
  readonly status: number;
  readonly headers: Headers;
  // Each test checks the fields of its own request.
  readonly body: Record<string, unknown>;
}

/** The server. */
export class TestAuthServer {
  readonly clock = new MovableClock();
  readonly test: TestDatabase;
  /** Base URL of the server. */
  readonly base: string;
  private readonly stops: (() => Promise<void> | undefined)[] = [];

  private constructor(test: TestDatabase, base: string) {
    this.test = test;
    this.base = base;
  }

  /** Starts a server with these settings, by their environment names. */
  static async start(settings: Record<string, string>): Promise<TestAuthServer> {
    const natsUrl = process.env['KELLET_TEST_NATS_URL'];
    if (!natsUrl) throw new Error('KELLET_TEST_NATS_URL is not set: run the tests with make test');
    const test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    const port = await freePort();
    const one = new TestAuthServer(test, `http://127.0.0.1:${port}`);
    const platform = testPlatform(test.database, one.clock, {
      KELLET_LISTEN_HOST: '127.0.0.1',
      KELLET_REST_PORT: String(port),
      KELLET_GRPC_PORT: '0',
      KELLET_DASHBOARD_PORT: '0',
      KELLET_ACCESS_LOG: 'off',
      ...settings,
    });
    const registry = new ServiceRegistry();
    const broker = new Broker(natsUrl, platform.logger);
    const auth = createAuth(platform, clusterAway, unknownGroups, async () => []);
    auth.register(registry);
    createTenants(platform, clusterWithoutTenants, async () => ({})).register(registry);
    await auth.start?.();
    const health = new Health({ postgres: () => test.database.ping() });
    const gateway = new Gateway({ ...platform, broker }, { invoker: registry, health });
    await gateway.start();
    one.stops.push(
      () => gateway.stop(),
      () => auth.stop?.(),
      () => broker.close(),
      () => test.drop(),
    );
    return one;
  }

  /** Stops the server and drops its database. */
  async stop(): Promise<void> {
    for (const stop of this.stops) await stop();
  }

  /** Sends a request to a route of the API. */
  async ask(verb: string, path: string, body?: unknown, credential = ''): Promise<Result> {
    const response = await fetch(`${this.base}/api/v1/${path}`, {
      method: verb,
      redirect: 'manual',
      headers: {
        'content-type': 'application/json',
        ...(credential === '' ? {} : { authorization: `Bearer ${credential}` }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const result = (await response.json()) as Record<string, unknown>;
    return { status: response.status, headers: response.headers, body: result };
  }

  /** Makes a user with a password and signs in. */
  async signedIn(role: Role = 'tenant_admin', tenantId = 'acme', email = `${newId()}@test`) {
    const userId = newId();
    const passwordHash = await hashPassword(password);
    const user = { userId, tenantId, email, name: '', role, passwordHash, disabled: false };
    await this.test.database.system((tx) => insertUser(tx, user));
    const { body } = await this.ask('POST', 'auth/login', { email, password, tenant_id: tenantId });
    return { userId, email, token: body['access_token'] as string };
  }
}

/** Returns a free port, which another process may take before it is used. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

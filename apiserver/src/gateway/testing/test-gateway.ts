// For tests: a gateway on real sockets and a real database, with handlers in memory.
import type { DescService } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import {
  AuthService,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponse_Reason as Reason,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { readConfig } from '../../config/config.ts';
import { RemoteInvoker } from '../../internal/remote-invoker.ts';
import { InternalServer } from '../../internal/server.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import { Broker } from '../../platform/events/broker.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics, type Registry } from '../../platform/observability/metrics.ts';
import { ServiceRegistry } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { Gateway } from '../gateway.ts';
import { Health } from '../http/health.ts';
import type { RequestReaders } from '../transcoding/transcode.ts';
import { responseFor, type TestToken } from './test-tokens.ts';

/** Responses of ValidateToken, by token; tests change it to revoke credentials. */
export type Tokens = Map<string, TestToken>;

/** A running gateway. */
export interface TestGateway {
  rest: string;
  grpc: string;
  /** URL of the dashboard's port. */
  pages: string;
  tokens: Tokens;
  /** Returns the number of ValidateToken calls. */
  validations: () => number;
  gateway: Gateway;
  health: Health;
  metrics: Registry;
  testDatabase: Pick<TestDatabase, 'database' | 'url'>;
  broker: Broker;
  stop(): Promise<void>;
}

/** Returns the callers used in tests. */
const knownTokens = (): Tokens =>
  new Map<string, TestToken>([
    ['viewer', { valid: true, tenantId: 'acme', userId: 'u1', kind: Kind.user, scopes: ['devices:read'] }],
    [
      'admin',
      { valid: true, tenantId: 'acme', userId: 'u2', kind: Kind.user, scopes: ['devices:read', 'devices:write'] },
    ],
    ['device', { valid: true, tenantId: 'acme', deviceId: 'd1', kind: Kind.device }],
    [
      'small',
      {
        valid: true,
        tenantId: 'small',
        userId: 'u3',
        kind: Kind.user,
        scopes: ['devices:read'],
        rateLimitPerMinute: 5,
      },
    ],
    ['platform', { valid: true, kind: Kind.platform_admin }],
    [
      'elsewhere',
      {
        valid: true,
        tenantId: 'acme',
        userId: 'u4',
        kind: Kind.user,
        scopes: ['devices:read'],
        ipAllowlist: ['192.0.2.0/24'],
      },
    ],
    ['expired', { valid: false, reason: Reason.expired, expiresAt: timestampFromMs(1) }],
  ]);

/** Starts a gateway on free ports. `register` adds handlers; `environment` adds settings. */
export async function startTestGateway(
  register: (registry: ServiceRegistry) => void,
  options: {
    environment?: Record<string, string>;
    /** Uses this database instead of a new one. */
    testDatabase?: Pick<TestDatabase, 'database' | 'url'>;
    isGatewayOf?: (tenantId: string, gatewayDeviceId: string, deviceId: string) => Promise<boolean>;
    /** Calls the handlers through the internal port, as in another process (KELLET_TEST_SPLIT=1 for all tests). */
    split?: boolean;
    /** Collects the lines of the access log, otherwise off, and of the log. */
    lines?: string[];
    /** The services to expose; defaults to the public ones. */
    services?: readonly DescService[];
    /** Readers of bodies. */
    readers?: RequestReaders;
  } = {},
): Promise<TestGateway> {
  const ownDatabase = options.testDatabase ? undefined : await createTestDatabase();
  const testDatabase = options.testDatabase ?? ownDatabase!;
  const natsUrl = process.env['KELLET_TEST_NATS_URL'];
  if (!natsUrl) throw new Error('KELLET_TEST_NATS_URL is not set: run the tests with make test');
  const config = readConfig(
    {
      KELLET_LISTEN_HOST: '127.0.0.1',
      KELLET_REST_PORT: '0',
      KELLET_GRPC_PORT: '0',
      KELLET_DASHBOARD_PORT: '0',
      KELLET_DATABASE_URL: testDatabase.url,
      KELLET_NATS_URL: natsUrl,
      KELLET_CONTROL_SECRET: 'control'.repeat(5),
      KELLET_JWT_PRIVATE_KEY: 'unused here',
      KELLET_CALLBACK_HMAC_SECRET: 'callback secret',
      KELLET_ACCESS_LOG: options.lines ? 'all' : 'off',
      KELLET_DASHBOARD_ORIGIN: 'https://dashboard.test',
      ...options.environment,
    },
    [],
  );
  const { lines } = options;
  const sink = lines && { write: (line: string) => void lines.push(line) };
  const logger = sink ? createLogger('trace', {}, sink) : createLogger('silent');
  const metrics = createMetrics();
  const broker = new Broker(natsUrl, logger);
  const registry = new ServiceRegistry();
  const tokens = knownTokens();
  let validations = 0;
  registry.register(AuthService, {
    validateToken: async ({ token }) => {
      validations += 1;
      return responseFor(tokens.get(token) ?? { valid: false, reason: Reason.unrecognized });
    },
  });
  register(registry);
  const health = new Health({ postgres: () => testDatabase.database.ping(), nats: () => broker.ping() });
  const internal = new InternalServer(config.controlSecret, logger);
  internal.addServicesOf(registry);
  const remote = new RemoteInvoker(
    'services',
    `127.0.0.1:${await internal.listen('127.0.0.1', 0)}`,
    config.controlSecret,
  );
  const { database } = testDatabase;
  const audit = new AuditTrail({ database, clock: systemClock, logger, metrics });
  const gateway = new Gateway(
    { config, clock: systemClock, logger, metrics, database, broker, audit },
    {
      invoker: (options.split ?? process.env['KELLET_TEST_SPLIT'] === '1') ? remote : registry,
      health,
      isGatewayOf: options.isGatewayOf,
      accessLog: sink,
      services: options.services,
      readers: options.readers,
    },
  );
  const { restPort, grpcPort, dashboardPort } = await gateway.start();
  return {
    rest: `http://127.0.0.1:${restPort}`,
    grpc: `127.0.0.1:${grpcPort}`,
    pages: `http://127.0.0.1:${dashboardPort}`,
    tokens,
    validations: () => validations,
    gateway,
    health,
    metrics,
    testDatabase,
    broker,
    stop: async () => {
      await gateway.stop();
      await audit.close();
      remote.close();
      await internal.close();
      await broker.close();
      await ownDatabase?.drop();
    },
  };
}

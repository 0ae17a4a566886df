// The gateway's REST server with in-memory handlers and real routing, authentication (cached), authorisation and
// transcoding. The real rate limit is off until it is switched on.
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { fromJson } from '@bufbuild/protobuf';
import { AuthService, ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService, DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { Admission } from '../../../apiserver/src/gateway/admission/admission-steps.ts';
import { Authenticator } from '../../../apiserver/src/gateway/admission/authenticate.ts';
import { clientAddresses } from '../../../apiserver/src/gateway/admission/client-address.ts';
import { connectionProofs } from '../../../apiserver/src/gateway/admission/connection-proof.ts';
import { createRestServer } from '../../../apiserver/src/gateway/http/rest-server.ts';
import { BodyMemory } from '../../../apiserver/src/gateway/memory/body-memory.ts';
import { DecodingTurns } from '../../../apiserver/src/gateway/memory/decoding-turns.ts';
import { LargeRequests } from '../../../apiserver/src/gateway/memory/large-requests.ts';
import { AccessLog } from '../../../apiserver/src/gateway/observability/access-log.ts';
import { AuditLog } from '../../../apiserver/src/gateway/observability/audit-log.ts';
import { CallMetrics } from '../../../apiserver/src/gateway/observability/call-metrics.ts';
import { PostgresRateCounter } from '../../../apiserver/src/gateway/rate-limit/postgres-rate-counter.ts';
import { RateLimiter } from '../../../apiserver/src/gateway/rate-limit/rate-limit.ts';
import { publicServices } from '../../../apiserver/src/gateway/services.ts';
import { RouteTable } from '../../../apiserver/src/gateway/transcoding/routes.ts';
import { AuditTrail } from '../../../apiserver/src/platform/audit/audit-trail.ts';
import { systemClock } from '../../../apiserver/src/platform/clock.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { createMetrics } from '../../../apiserver/src/platform/observability/metrics.ts';
import { ServiceRegistry } from '../../../apiserver/src/platform/rpc.ts';
import { deviceJson } from '../samples/request-bodies.ts';
import { serveParent } from './measured-server.ts';

/** Counts requests only while it is switched on. */
class SwitchedLimiter extends RateLimiter {
  isOn = false;

  override count(...call: Parameters<RateLimiter['count']>): ReturnType<RateLimiter['count']> {
    return this.isOn ? super.count(...call) : Promise.resolve(undefined);
  }
}

await serveParent(async ({ databaseUrl }) => {
  const logger = createLogger('warn');
  const metrics = createMetrics();
  const registry = new ServiceRegistry();
  const device = fromJson(DeviceSchema, deviceJson);
  registry.register(AuthService, {
    validateToken: async () => ({
      valid: true,
      tenantId: 'bench',
      kind: Kind.service,
      scopes: ['devices:read', 'telemetry:write'],
      grant: { keyId: 'k1', rateLimitPerMinute: 1_000_000_000 },
    }),
  });
  registry.register(DeviceRegistryService, { getDevice: async () => device });
  registry.register(TelemetryService, {
    ingest: async ({ points }) => ({ accepted: points.length, rejected: 0, errors: [] }),
  });
  const database = new Database(databaseUrl ?? '', logger);
  const limiter = new SwitchedLimiter(new PostgresRateCounter(database, logger), systemClock, logger, metrics);
  const authenticator = new Authenticator(registry, systemClock);
  const memory = new BodyMemory();
  const routes = new RouteTable(publicServices);
  const audit = new AuditLog(new AuditTrail({ database, clock: systemClock, logger, metrics }), routes);
  const server = createRestServer({
    routes,
    admission: new Admission(
      authenticator,
      limiter,
      { isGatewayOf: () => Promise.resolve(false), isVisible: () => Promise.resolve(false) },
      systemClock,
      audit,
    ),
    authenticator,
    invoker: audit.wrap(registry),
    metrics: new CallMetrics(metrics),
    logger,
    dashboardOrigin: 'http://127.0.0.1:8081',
    addressOf: clientAddresses([]),
    proofOf: connectionProofs('', []),
    accessLog: new AccessLog('off'),
    limits: {},
    memory,
    large: new LargeRequests(memory),
    turns: new DecodingTurns(),
    stopping: new AbortController().signal,
    cold: () => false,
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, limit: (on) => (limiter.isOn = on) };
});

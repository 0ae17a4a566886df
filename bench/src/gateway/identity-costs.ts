// identity-costs: CPU time of this process for knowing who makes a request, from the cache, and for recording it in the audit log.
import { create } from '@bufbuild/protobuf';
import {
  AuthService,
  ValidateTokenResponse_Kind as Kind,
  ValidateTokenResponseSchema,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { Authenticator } from '../../../apiserver/src/gateway/admission/authenticate.ts';
import { AuditTrail } from '../../../apiserver/src/platform/audit/audit-trail.ts';
import { systemClock } from '../../../apiserver/src/platform/clock.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { createMetrics } from '../../../apiserver/src/platform/observability/metrics.ts';
import { ServiceRegistry } from '../../../apiserver/src/platform/rpc.ts';
import { startEnvironment } from '../environment.ts';
import { median, type Result, type Suite } from '../harness.ts';

const rounds = 9;

/** Returns the CPU time of a run in microseconds per call, user and system, of all threads of this process. */
async function microsecondsPerCall(calls: number, run: () => Promise<void>): Promise<number> {
  const before = process.cpuUsage();
  await run();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / calls;
}

async function medianOf(measure: () => Promise<number>): Promise<number> {
  // The first one compiles the code.
  await measure();
  const figures: number[] = [];
  for (let round = 0; round < rounds; round += 1) figures.push(await measure());
  return median(figures);
}

/** Returns the cost of a credential that is cached, beside an awaited call that does nothing. */
async function cacheHit(): Promise<{ ours: number; baseline: number }> {
  const registry = new ServiceRegistry();
  const response = create(ValidateTokenResponseSchema, {
    ...{ valid: true, tenantId: 'acme', userId: 'u1', kind: Kind.user, scopes: ['devices:read', 'telemetry:read'] },
    grant: { rateLimitPerMinute: 1000, sessionId: 's1', name: 'ann@acme.test' },
  });
  registry.register(AuthService, { validateToken: async () => response });
  const authenticator = new Authenticator(registry, systemClock);
  // As long as an access token.
  const token = `eyJ${'a'.repeat(600)}`;
  const nothing = async (): Promise<string> => token;
  const calls = 50_000;
  const repeat = (call: () => Promise<unknown>) => () =>
    microsecondsPerCall(calls, async () => {
      for (let index = 0; index < calls; index += 1) await call();
    });
  return {
    ours: await medianOf(repeat(() => authenticator.authenticate(token, '127.0.0.1'))),
    baseline: await medianOf(repeat(nothing)),
  };
}

/** Returns the cost of an event that its call waits for, with the statements that write it: 64 calls at a time. */
async function auditedCall(databaseUrl: string): Promise<number> {
  const logger = createLogger('fatal');
  const database = new Database(databaseUrl, logger, { maximumConnections: 2 });
  const trail = new AuditTrail({ database, clock: systemClock, logger, metrics: createMetrics() });
  const facts = {
    ...{ tenantId: '', action: 'DeviceRegistryService/UpdateDevice', result: 'OK', requestId: 'r1' },
    ...{ actor: { kind: 'user', id: 'u1', name: 'ann@acme.test' }, resource: { kind: 'device', id: 'd1' } },
    ...{ address: '192.0.2.1', userAgent: 'bench' },
  };
  const calls = 6400;
  try {
    return await medianOf(() =>
      microsecondsPerCall(calls, async () => {
        const one = async (): Promise<void> => {
          for (let index = 0; index < calls / 64; index += 1) await trail.record(facts);
        };
        await Promise.all(Array.from({ length: 64 }, one));
      }),
    );
  } finally {
    await trail.close();
    await database.close();
  }
}

/** The suite. */
export const identityCosts: Suite = {
  name: 'identity-costs',
  run: async (report) => {
    const { ours, baseline } = await cacheHit();
    const environment = await startEnvironment(report, 1);
    try {
      const audited = await auditedCall(environment.databaseUrl);
      return [
        resultOf('authenticated request, cached', ours, 'an awaited call that does nothing', baseline),
        resultOf('audited call', audited, 'its authentication', ours),
      ];
    } finally {
      await environment.close();
    }
  },
};

const resultOf = (name: string, value: number, baseline: string, baselineValue: number): Result => ({
  ...{ name: `identity-costs: ${name}`, value, unit: 'µs CPU', rounds },
  ...{ baseline, baseline_value: baselineValue, ratio: value / baselineValue },
});

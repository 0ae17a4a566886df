// For tests: a platform on a test database, with a clock that the test moves.
import { generateKeyPairSync } from 'node:crypto';
import { readConfig } from '../../config/config.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import type { Database } from '../../platform/database/database.ts';
import { unavailable } from '../../platform/errors.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { Paging } from '../../platform/requests/paging.ts';
import type { CreationsOptions } from '../../resources/creations.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import type { AuthKubernetes } from '../service.ts';

/** A clock that only the test advances, so that the speed of the machine does not matter. */
export class MovableClock {
  private milliseconds = Date.now();

  now(): number {
    return this.milliseconds;
  }

  /** Advances the clock. */
  advance(milliseconds: number): void {
    this.milliseconds += milliseconds;
  }
}

/** A new Ed25519 key in PEM. */
export const newSigningKey = (): string =>
  generateKeyPairSync('ed25519').privateKey.export({ format: 'pem', type: 'pkcs8' }).toString();

/** The platform of the auth service. `environment` adds settings by their environment names. */
export function testPlatform(
  database: Database,
  clock: MovableClock,
  environment: Record<string, string> = {},
): AuthPlatform {
  const config = readConfig(
    {
      KELLET_DATABASE_URL: 'postgres://unused',
      KELLET_NATS_URL: 'nats://unused',
      KELLET_CONTROL_SECRET: 'control'.repeat(5),
      KELLET_CALLBACK_HMAC_SECRET: 'unused',
      KELLET_JWT_PRIVATE_KEY: newSigningKey(),
      ...environment,
    },
    [],
  );
  const paging = new Paging(Buffer.alloc(32, 7));
  const logger = createLogger('silent');
  const metrics = createMetrics();
  const audit = new AuditTrail({ database, clock, logger, metrics });
  return { config, database, clock, logger, metrics, paging, audit };
}

const away = () => Promise.reject(unavailable('the Kubernetes API is unavailable'));
/** A Kubernetes API that is unavailable. */
export const clusterAway: AuthKubernetes & CreationsOptions['kubernetes'] = {
  review: away,
  signingKeys: away,
  create: away,
  get: away,
  delete: away,
  mergePatch: away,
};

/** A Kubernetes API without Tenant resources, which cannot be written to. */
export const clusterWithoutTenants: typeof clusterAway = { ...clusterAway, get: async () => undefined };

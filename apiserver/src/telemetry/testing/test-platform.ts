// The platform of a telemetry service on a real database, for tests.
import { randomBytes } from 'node:crypto';
import { readConfig } from '../../config/config.ts';
import type { Platform } from '../../config/module.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Broker } from '../../platform/events/broker.ts';
import { OutboxRelay } from '../../platform/events/outbox.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { Paging } from '../../platform/requests/paging.ts';

/** Creates a platform; `close` stops everything it started except the database. */
export function testPlatform(
  database: Database,
  broker: Broker,
  settings: Record<string, string> = {},
): Platform & { close(): Promise<void> } {
  const config = readConfig(
    {
      KELLET_DATABASE_URL: 'postgres://unused',
      KELLET_NATS_URL: 'nats://unused',
      KELLET_CONTROL_SECRET: 'control'.repeat(5),
      KELLET_JWT_PRIVATE_KEY: 'unused',
      KELLET_CALLBACK_HMAC_SECRET: 'unused',
      ...settings,
    },
    [],
  );
  const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'fatal');
  const metrics = createMetrics();
  const outbox = new OutboxRelay(database, broker, logger, metrics);
  return {
    config,
    clock: systemClock,
    logger,
    metrics,
    database,
    broker,
    outbox,
    paging: new Paging(randomBytes(32)),
    audit: new AuditTrail({ database, clock: systemClock, logger, metrics }),
    close: () => outbox.close(),
  };
}

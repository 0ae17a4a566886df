// Runs chain-anchor as a separate process that tests can kill. Settings come from the environment as in production; the
// timing is that of the other tests. Prints a line once it is running.
import { readConfig } from '../../config/config.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { Broker } from '../../platform/events/broker.ts';
import { OutboxRelay } from '../../platform/events/outbox.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { Paging } from '../../platform/requests/paging.ts';
import { createChainAnchor } from '../service.ts';
import { quickTiming } from './quick-timing.ts';

const config = readConfig(process.env, []);
const logger = createLogger(config.logLevel);
const database = new Database(config.databaseUrl, logger);
const broker = new Broker(config.natsUrl, logger);
const module = createChainAnchor(
  {
    config,
    clock: systemClock,
    logger,
    metrics: createMetrics(),
    database,
    broker,
    outbox: new OutboxRelay(database, broker, logger, createMetrics()),
    paging: new Paging(Buffer.alloc(32)),
    audit: new AuditTrail({ database, clock: systemClock, logger, metrics: createMetrics() }),
  },
  quickTiming,
);
await module.start!();
process.stdout.write('started\n');

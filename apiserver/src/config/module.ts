// What every service folder is given, and what it gives back to main.ts.
import type { Config } from './config.ts';
import type { Broker } from '../platform/events/broker.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { Registry } from '../platform/observability/metrics.ts';
import type { OutboxRelay } from '../platform/events/outbox.ts';
import type { Paging } from '../platform/paging.ts';
import type { ServiceRegistry } from '../platform/rpc.ts';

/** The ground a service stands on. */
export interface Platform {
  readonly config: Config;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly database: Database;
  readonly broker: Broker;
  readonly outbox: OutboxRelay;
  readonly paging: Paging;
}

/** A service as main.ts sees it: started in order, stopped in the opposite order. */
export interface ServiceModule {
  /** Puts the service's handlers into the registry. */
  register(registry: ServiceRegistry): void;
  /** Starts its loops; resolves when it can serve. */
  start?(): Promise<void>;
  /** Throws, with the reason, while the service cannot use the database although the database answers. */
  check?(): void;
  /** Ends its loops; everything acknowledged is durable before it resolves. */
  stop?(): Promise<void>;
}

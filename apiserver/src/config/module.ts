// The interfaces between main.ts and the services.
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import type { Clock } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import type { Broker } from '../platform/events/broker.ts';
import type { OutboxRelay } from '../platform/events/outbox.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { Registry } from '../platform/observability/metrics.ts';
import type { Paging } from '../platform/requests/paging.ts';
import type { ServiceRegistry } from '../platform/rpc.ts';
import type { Config } from './config.ts';

/** Shared infrastructure of the services. */
export interface Platform {
  readonly config: Config;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly database: Database;
  readonly broker: Broker;
  readonly outbox: OutboxRelay;
  readonly paging: Paging;
  readonly audit: AuditTrail;
}

/** A service as used by main.ts: started in order, stopped in reverse order. */
export interface ServiceModule {
  /** Registers the service's handlers. */
  register(registry: ServiceRegistry): void;
  /** Starts background work; resolves when it can serve. */
  start?(): Promise<void>;
  /** Throws with the reason when the service cannot use an otherwise healthy database. */
  check?(): void;
  /** Stops background work; resolves when everything acknowledged is durable. */
  stop?(): Promise<void>;
}

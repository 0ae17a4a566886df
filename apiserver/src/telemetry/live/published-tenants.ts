// Determines which tenants' points are published on NATS: those configured, unless overridden with `kellet-apiserver
// publish-points`.
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { tenantChannel } from '../../platform/database/channels.ts';
import { publicationChoices } from '../../policies/tenant-reader.ts';
import type { Logger } from '../../platform/observability/logger.ts';

const retryMilliseconds = 1000;

/** Returns the tenants named by KELLET_PUBLISH_POINTS; contains `*` if it means all. */
export const configuredTenants = (setting: string): ReadonlySet<string> =>
  new Set(
    setting
      .split(',')
      .map((tenantId) => tenantId.trim())
      .filter((tenantId) => tenantId !== ''),
  );

/** The run-time overrides, as known to this process. */
export class PublishedTenants {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly configured: ReadonlySet<string>;
  private chosen = new Map<string, boolean>();
  private reading: Promise<void> = Promise.resolve();
  private readonly closing = new AbortController();

  constructor(database: Database, logger: Logger, setting: string) {
    this.database = database;
    this.logger = logger;
    this.configured = configuredTenants(setting);
  }

  /** Starts following the overrides. While the database is unreachable, the last known ones apply. */
  start(): void {
    this.database.listen(
      [tenantChannel],
      (_channel, tenantId) => this.read(tenantId),
      (lost) => lost || this.read(),
    );
  }

  stop(): void {
    this.closing.abort();
  }

  /** Reports whether points of the tenant are published. */
  has(tenantId: string): boolean {
    return this.chosen.get(tenantId) ?? (this.configured.has('*') || this.configured.has(tenantId));
  }

  /**
   * Reads the override of one tenant, or all. Reads run one after another so that an older result never replaces a
   * newer one.
   */
  private read(tenantId?: string): void {
    this.reading = this.reading.then(async () => {
      while (!this.closing.signal.aborted) {
        try {
          return await this.readNow(tenantId);
        } catch (error) {
          this.logger.debug({ err: error }, "failed to read which tenants' points are published");
          await sleep(retryMilliseconds, this.closing.signal);
        }
      }
    });
  }

  private async readNow(tenantId: string | undefined): Promise<void> {
    const read = await this.database.systemRead((tx) => publicationChoices(tx, tenantId));
    if (tenantId !== undefined) this.chosen.delete(tenantId);
    this.chosen = tenantId === undefined ? read : new Map([...this.chosen, ...read]);
  }
}

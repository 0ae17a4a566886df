// Which tenants' points are published on NATS: those of the configuration, unless `kellet-apiserver publish-points` says otherwise.
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { tenantChannel } from '../../platform/database/channels.ts';
import type { Logger } from '../../platform/observability/logger.ts';

const retryMilliseconds = 1000;

/** The tenants that KELLET_PUBLISH_POINTS names; `*` is among them when it means all. */
export const configuredTenants = (setting: string): ReadonlySet<string> =>
  new Set(
    setting
      .split(',')
      .map((tenantId) => tenantId.trim())
      .filter((tenantId) => tenantId !== ''),
  );

/** The choices that were made at run time, as this process knows them. */
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

  /** Follows the choices from now on. While the database cannot be heard, those last known count. */
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

  /** Whether points of the tenant are published. */
  has(tenantId: string): boolean {
    return this.chosen.get(tenantId) ?? (this.configured.has('*') || this.configured.has(tenantId));
  }

  /** Reads the choice for a tenant, or all; one after another, so that an older answer never replaces a newer one. */
  private read(tenantId?: string): void {
    this.reading = this.reading.then(async () => {
      while (!this.closing.signal.aborted) {
        try {
          return await this.readNow(tenantId);
        } catch (error) {
          this.logger.debug({ err: error }, 'whose points are published could not be read');
          await sleep(retryMilliseconds, this.closing.signal);
        }
      }
    });
  }

  private async readNow(tenantId: string | undefined): Promise<void> {
    const { rows } = await this.database.systemRead((tx) =>
      tx.query<{ tenant_id: string; publish_points: boolean }>(
        `SELECT tenant_id, publish_points FROM tenants
         WHERE publish_points IS NOT NULL AND deleted_at IS NULL AND ($1::text IS NULL OR tenant_id = $1)`,
        [tenantId ?? null],
      ),
    );
    if (tenantId === undefined) this.chosen = new Map();
    else this.chosen.delete(tenantId);
    for (const row of rows) this.chosen.set(row.tenant_id, row.publish_points);
  }
}

// Follows a setting that few tenants have, so that it can be read without a query.
import { sleep } from '../platform/clock.ts';
import { tenantChannel } from '../platform/database/channels.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';

const retryMilliseconds = 1000;

/** Reads the setting of one tenant, or of all that have it. */
type Read<T> = (tx: Transaction, tenantId?: string) => Promise<Map<string, T>>;

/** A setting by tenant, as known to this process. */
export class FollowedTenants<T> {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly readFrom: Read<T>;
  private known = new Map<string, T>();
  private reading: Promise<void> = Promise.resolve();
  private readonly closing = new AbortController();

  constructor(database: Database, logger: Logger, read: Read<T>) {
    this.database = database;
    this.logger = logger;
    this.readFrom = read;
  }

  /** Starts following. While the database is unreachable, the last known settings apply. */
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

  /** Returns the setting of a tenant, or undefined if it has none. */
  get(tenantId: string): T | undefined {
    return this.known.get(tenantId);
  }

  /**
   * Reads the setting of one tenant, or of all. Reads run one after another so that an older result never replaces a
   * newer one.
   */
  private read(tenantId?: string): void {
    this.reading = this.reading.then(async () => {
      while (!this.closing.signal.aborted) {
        try {
          return await this.readNow(tenantId);
        } catch (error) {
          this.logger.debug({ err: error }, 'failed to read settings of tenants');
          await sleep(retryMilliseconds, this.closing.signal);
        }
      }
    });
  }

  private async readNow(tenantId: string | undefined): Promise<void> {
    const read = await this.database.systemRead((tx) => this.readFrom(tx, tenantId));
    if (tenantId === undefined) {
      this.known = read;
      return;
    }
    const setting = read.get(tenantId);
    if (setting === undefined) this.known.delete(tenantId);
    else this.known.set(tenantId, setting);
  }
}

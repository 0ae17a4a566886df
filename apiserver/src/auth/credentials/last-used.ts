// When sessions and service keys were last used: gathered in memory, written every few seconds, at most once a minute each.
import type { Clock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';

type Table = 'sessions' | 'api_keys';
const idColumn: Readonly<Record<Table, string>> = { sessions: 'session_id', api_keys: 'key_id' };

const writeEveryMilliseconds = 2000;
const worthWritingMilliseconds = 60_000;

/** Gathers uses of credentials. What a crash loses is at most two seconds of times. */
export class LastUsed {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly pending: Record<Table, Map<string, number>> = { sessions: new Map(), api_keys: new Map() };
  private timer: NodeJS.Timeout | undefined;

  constructor(database: Database, clock: Clock, logger: Logger) {
    this.database = database;
    this.clock = clock;
    this.logger = logger;
  }

  start(): void {
    this.timer = setInterval(() => {
      this.write().catch((error: unknown) => this.logger.debug({ err: error }, 'times of use are not written yet'));
    }, writeEveryMilliseconds);
    this.timer.unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.timer);
    await this.write().catch(() => undefined);
  }

  /** Notes a use now, unless what is stored is fresh enough. */
  note(table: Table, id: string, stored: Date | null): void {
    const now = this.clock.now();
    if (stored === null || now - stored.getTime() > worthWritingMilliseconds) this.pending[table].set(id, now);
  }

  /** Writes what was noted; lists call it first so that they show it. */
  async write(): Promise<void> {
    for (const table of ['sessions', 'api_keys'] as const) {
      const uses = [...this.pending[table]];
      if (uses.length === 0) continue;
      this.pending[table] = new Map();
      try {
        await this.database.system((tx) =>
          tx.query(
            `UPDATE ${table} SET last_used_at = greatest(last_used_at, used.at)
             FROM unnest($1::uuid[], $2::timestamptz[]) AS used (id, at) WHERE ${idColumn[table]} = used.id`,
            [uses.map(([id]) => id), uses.map(([, at]) => new Date(at))],
          ),
        );
      } catch (error) {
        // A later use counts more than one that could not be written.
        this.pending[table] = new Map([...uses, ...this.pending[table]]);
        throw error;
      }
    }
  }
}

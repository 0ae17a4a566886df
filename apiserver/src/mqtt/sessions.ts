// Sessions by connection: those that outlast it are stored, in batches, and removed once they have expired.
import { Loop } from '../platform/background/loop.ts';
import { Batches } from '../platform/concurrency/keyed-batches.ts';
import type { Database } from '../platform/database/database.ts';
import { retriedTransactions } from '../platform/database/retry-conflicts.ts';
import type { Logger } from '../platform/observability/logger.ts';
import {
  type Beginning,
  beginSessions,
  deleteExpired,
  openSeconds,
  type Stamp,
  stampSessions,
  type StoredSubscriptions,
  writeSubscriptions,
} from './session-store.ts';
import type { Subscriptions } from './topics.ts';

/** Maximum sessions that one statement concerns. */
const maxPerStatement = 500;
const sweepMilliseconds = 60_000;
/** How often the loop looks for sessions whose expiry has to be extended. */
const stampMilliseconds = 60_000;

/** The session of an open connection. */
export interface Session {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly connectionId: string;
  expirySeconds: number;
  readonly subscriptions: Map<string, 0 | 1>;
}

/** Knows the sessions of this process's connections that are stored. */
export class Sessions {
  private readonly database: Database;
  private readonly open = new Map<Session, number>();
  private readonly loops: readonly Loop[];
  private readonly beginnings: Batches<Beginning, StoredSubscriptions | undefined>;
  private readonly stamps: Batches<Stamp, undefined>;

  constructor(database: Database, logger: Logger) {
    this.database = database;
    const retried = retriedTransactions(database);
    this.beginnings = new Batches(maxPerStatement, async (tenantId, beginnings) => {
      const continued = await retried(tenantId, (tx) => beginSessions(tx, tenantId, beginnings));
      return beginnings.map(({ deviceId }) => continued.get(deviceId));
    });
    this.stamps = new Batches(maxPerStatement, async (_key, stamps) => {
      await database.system((tx) => stampSessions(tx, stamps));
      return stamps.map(() => undefined);
    });
    this.loops = [
      new Loop(logger, 'putting off the expiry of open MQTT sessions', stampMilliseconds, () => this.putOff()),
      new Loop(
        logger,
        'sweep of MQTT sessions',
        sweepMilliseconds,
        async () => (await database.system((tx) => deleteExpired(tx, maxPerStatement))) === maxPerStatement,
      ),
    ];
  }

  start(): void {
    for (const loop of this.loops) loop.start();
  }

  async stop(): Promise<void> {
    await Promise.all(this.loops.map((loop) => loop.stop()));
  }

  /** Begins the session of a connection, and reports whether it continues an earlier one. */
  async begin(tenantId: string, beginning: Beginning): Promise<{ session: Session; isPresent: boolean }> {
    const stored = await this.beginnings.add(tenantId, beginning);
    const { deviceId, connectionId, expirySeconds } = beginning;
    const subscriptions = new Map(Object.entries(stored ?? {}));
    const session = { tenantId, deviceId, connectionId, expirySeconds, subscriptions };
    if (expirySeconds > 0) this.open.set(session, performance.now());
    return { session, isPresent: stored !== undefined };
  }

  /** Changes the subscriptions; resolves once they are stored. */
  async subscribe(session: Session, subscriptions: Subscriptions): Promise<void> {
    const { tenantId, deviceId, connectionId } = session;
    if (session.expirySeconds > 0) {
      const stored = Object.fromEntries(subscriptions);
      await this.database.tenant(tenantId, (tx) => writeSubscriptions(tx, tenantId, deviceId, connectionId, stored));
    }
    session.subscriptions.clear();
    for (const [filter, qos] of subscriptions) session.subscriptions.set(filter, qos);
  }

  /** Ends the connection of a session: from now on it expires. */
  async end(session: Session): Promise<void> {
    if (!this.open.delete(session)) return;
    const { tenantId, deviceId, connectionId, expirySeconds: seconds } = session;
    await this.stamps.add('', { tenantId, deviceId, connectionId, seconds });
  }

  private async putOff(): Promise<void> {
    const now = performance.now();
    const due = [...this.open].filter(([, at]) => now - at >= (openSeconds / 2) * 1000).map(([session]) => session);
    await Promise.all(
      due.map(async (session) => {
        const { tenantId, deviceId, connectionId, expirySeconds } = session;
        await this.stamps.add('', { tenantId, deviceId, connectionId, seconds: expirySeconds + openSeconds });
        if (this.open.has(session)) this.open.set(session, now);
      }),
    );
  }
}

// The pool of connections, without those that may be dead.
import pg from 'pg';
import { FairSlots } from '../../concurrency/fair-slots.ts';
import { unavailable } from '../../errors.ts';
import type { Logger } from '../../observability/logger.ts';
import { connectionOptions, connectMilliseconds, prepareSession } from './connection.ts';
import { isConnectionError } from './database-errors.ts';
import type { SlowStatements } from './slow-statements.ts';
import { type Result, sendBatch, type Statement } from './statement-batch.ts';

/**
 * Margin on top of the server's statement timeout. A server that has not responded by then is considered dead, and the
 * connection is closed.
 */
const responseMilliseconds = 2000;

/** Timeout of a ping. */
const pingMilliseconds = 2000;

/** Share of the connections that one owner's work can have, so that others need not wait for it. */
const shareOfOwner = 0.75;

/** A connection that is in use. */
export interface Lease {
  readonly client: pg.PoolClient;
  /** Returns the connection to the pool, or closes it if it is broken. */
  readonly release: (broken: Error | undefined) => void;
}

/** Settings of a pool. */
export interface PoolSettings {
  readonly maximumConnections: number;
  /** Statement timeout of queries on the pool itself. */
  readonly statementMilliseconds: number;
  readonly slowStatements: SlowStatements | undefined;
  /**
   * Whether a pooler in transaction mode is between: then another connection of the server may run each transaction, so
   * nothing may be prepared or set for longer.
   */
  readonly isPooled: boolean;
}

/** The connections. */
export class ConnectionPool {
  readonly pool: pg.Pool;
  private readonly slowStatements: SlowStatements | undefined;
  private readonly isPooled: boolean;
  private readonly slots: FairSlots;
  /** When each pooled connection last worked, in milliseconds of performance.now. */
  private readonly heardAt = new WeakMap<pg.PoolClient, number>();
  /** Connections last heard from before this time are not reused. */
  private doubtedAt = 0;
  /** Since when each connection has an outstanding response. */
  private readonly sentAt = new Map<pg.PoolClient, number>();

  constructor(
    url: string,
    logger: Logger,
    { maximumConnections, statementMilliseconds, slowStatements, isPooled }: PoolSettings,
  ) {
    this.slowStatements = slowStatements;
    this.isPooled = isPooled;
    this.slots = new FairSlots({
      ...{
        total: maximumConnections,
        perOwner: Math.ceil(maximumConnections * shareOfOwner),
        waitingPerOwner: Infinity,
      },
      refusal: () => unavailable('the database is busy: try again'),
    });
    // The pool awaits it, though pg's types do not say so.
    const onConnect = (client: pg.ClientBase): unknown => prepareSession(client, statementMilliseconds);
    this.pool = new pg.Pool({
      ...connectionOptions(url, 'kellet-apiserver'),
      max: maximumConnections,
      // For queries on the pool itself; transactions set their own timeouts.
      query_timeout: statementMilliseconds + responseMilliseconds,
      ...(isPooled ? {} : { onConnect }),
    });
    this.pool.on('error', (error) => logger.warn({ err: error }, 'idle database connection lost'));
    // The pool listens on idle connections only, and an error without a listener would end the process. The pool
    // discards lost connections by itself.
    this.pool.on('connect', (client) => client.on('error', () => undefined));
  }

  /**
   * Sends the statements that open a transaction, if any, together with others, and returns the results of the latter.
   * Rejects if the server has not responded shortly after `timeoutMilliseconds`.
   */
  async send(
    client: pg.PoolClient,
    opening: readonly Statement[],
    statements: readonly Statement[],
    timeoutMilliseconds: number,
  ): Promise<Result<pg.QueryResultRow>[]> {
    const started = performance.now();
    this.sentAt.set(client, started);
    let hasFailed = true;
    try {
      const all = [...opening, ...statements];
      const sent = this.isPooled ? all.map((statement) => ({ ...statement, name: undefined })) : all;
      const results = await sendBatch(client, sent, timeoutMilliseconds + responseMilliseconds);
      hasFailed = false;
      return results.slice(opening.length);
    } catch (error) {
      if (isConnectionError(error)) this.doubt();
      throw error;
    } finally {
      this.sentAt.delete(client);
      if (!hasFailed) this.heardAt.set(client, performance.now());
      this.slowStatements?.judge(statements, performance.now() - started, hasFailed);
    }
  }

  /** Runs one statement by itself, prepared under its name where that is possible. */
  single<Row extends pg.QueryResultRow>(
    name: string,
    statement: Statement,
    milliseconds: number,
  ): Promise<pg.QueryResult<Row>> {
    const { text, values = [] } = statement;
    return this.pool.query<Row>({
      ...(this.isPooled ? {} : { name }),
      ...{ text, values: [...values], query_timeout: milliseconds },
    } as pg.QueryConfig);
  }

  /** Returns a connection that is not in doubt. Owners take turns: tenants, addresses of strangers, the loops as '' and the ping. Throws UNAVAILABLE. */
  async connect(owner: string): Promise<Lease> {
    const leave = await this.slots.acquire(owner, { milliseconds: connectMilliseconds });
    try {
      for (;;) {
        const client = await this.pool.connect();
        if ((this.heardAt.get(client) ?? Infinity) < this.doubtedAt) {
          client.release(true);
          continue;
        }
        const release = (broken: Error | undefined): void => {
          client.release(broken);
          leave();
        };
        return { client, release };
      }
    } catch (error) {
      leave();
      throw unavailable('the database is unavailable', error);
    }
  }

  /**
   * Records that a connection was lost. Others waiting in the pool may be dead too; they are replaced so that they do
   * not cost a caller a full timeout each.
   */
  doubt(): void {
    this.doubtedAt = performance.now();
  }

  /** Called when the server cannot be reached at all: closes connections that have waited this long for a response. */
  unreachable(milliseconds: number): void {
    this.doubt();
    for (const [client, sentAt] of this.sentAt) {
      if (performance.now() - sentAt > milliseconds) client.connection.stream.destroy();
    }
  }

  /** Resolves if the database responds and accepts writes; rejects with the reason otherwise. */
  async ping(): Promise<void> {
    const { client, release } = await this.connect('ping');
    let broken: Error | undefined;
    try {
      const [asked] = await sendBatch(client, [{ text: 'SHOW transaction_read_only' }], pingMilliseconds);
      if (asked!.rows[0]!['transaction_read_only'] === 'on') throw new Error('the server does not accept writes');
    } catch (error) {
      broken = error as Error;
      throw error;
    } finally {
      release(broken);
    }
  }
}

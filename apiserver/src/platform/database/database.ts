// PostgreSQL: one pool, with reads and transactions scoped to a tenant or to the system, and notifications.
import type { Attributes } from '@opentelemetry/api';
import pg from 'pg';
import { unavailable } from '../errors.ts';
import type { Logger } from '../observability/logger.ts';
import { counter, type Registry } from '../observability/metrics.ts';
import { beginClientSpan, currentTrace, endTrace, inTrace, markChanged } from '../observability/tracing.ts';
import { connectionOptions, cutOff, prepareSession } from './connection/connection.ts';
import { ConnectionPool } from './connection/connection-pool.ts';
import {
  failureOf,
  isConnectionError,
  isReadOnlyServer,
  isSilence,
  isTimeout,
  tookTooLong,
} from './connection/database-errors.ts';
import { Hints } from './connection/hints.ts';
import { Listener, type ListenerState } from './connection/listen.ts';
import { confirmCommit, mayWrite, transactionId } from './connection/lost-commit.ts';
import {
  begin,
  beginSnapshot,
  boundsOf,
  checkTenantId,
  commit,
  readSettings,
  rollback,
  setting,
  systemBoundsOf,
  tenantSettings,
  transactionBoundsOf,
} from './connection/scopes.ts';
import type { SlowStatements } from './connection/slow-statements.ts';
import { isStale, type Result, type Statement, StatementNames, StatementQueue } from './connection/statement-batch.ts';

// int8 holds nanoseconds and sizes beyond 2^53; everything smaller is int4 in Kellet's tables.
pg.types.setTypeParser(pg.types.builtins.INT8, (text) => BigInt(text));

/**
 * The interface stores use: parameterised queries inside a transaction, one statement each. Queries issued together
 * before an await (Promise.all) share one round trip.
 */
export interface Transaction {
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Result<Row>>;
  /**
   * Tells those who listen on a channel once the transaction has committed, together with other hints of the process. A hint
   * is lost if the process crashes before: they must find out anyway. Use pg_notify in a statement where they would not.
   */
  hint(channel: string, payloads?: readonly string[]): void;
}

/** Statement timeout of requests; none should take even a fraction of it. */
const defaultStatementMilliseconds = 15_000;

/** Statement timeout of loops. */
const defaultLoopMilliseconds = 30_000;

/** Statement timeout of maintenance, such as building an index or reading a whole table. */
const maintenanceMilliseconds = 600_000;

/** Default of `outcomeMilliseconds`. */
const defaultOutcomeMilliseconds = 30_000;

const maintenanceBounds = systemBoundsOf(maintenanceMilliseconds);

/** Interval and timeout of the heartbeat on a listening connection. */
const defaultHeartbeatMilliseconds = 3_000;

/** Connections of a process outside the pool: one that listens, one that writes points, and two that hold locks of maintenance. */
export const connectionsBesidePool = 4;

/** Options of a database; the defaults are for production. */
export interface DatabaseOptions {
  /**
   * URL of the server itself, if the other one leads through a pooler in transaction mode: for what belongs to a
   * connection (notifications, advisory locks, the writers of points). Empty or absent: there is no such pooler.
   */
  readonly directUrl?: string;
  /** Connections of the pool; a process gives KELLET_DATABASE_CONNECTIONS less those beside it. */
  readonly maximumConnections?: number;
  /** Statement timeout of requests. */
  readonly statementMilliseconds?: number;
  /** Statement timeout of loops. */
  readonly loopMilliseconds?: number;
  readonly heartbeatMilliseconds?: number;
  /** How long to ask whether a transaction was committed whose COMMIT got no response. */
  readonly outcomeMilliseconds?: number;
  /** Observes the statements of reads and transactions. */
  readonly slowStatements?: SlowStatements;
  /** Counts hints that were dropped. */
  readonly metrics?: Registry;
}

/** Returns whose work goes on: that of the current call, or that of the loops. */
const ownerOfCall = (): string => currentTrace()?.owner ?? '';

/** The database of the data plane. */
export class Database {
  private readonly connections: ConnectionPool;
  private readonly url: string;
  private readonly directUrl: string;
  private readonly logger: Logger;
  private readonly statementMilliseconds: number;
  private readonly loopMilliseconds: number;
  private readonly tenantScope: Statement;
  private readonly readScope: Statement;
  private readonly systemReadScope: Statement;
  private readonly repeatableScope: Statement;
  private readonly systemBounds: readonly Statement[];
  private readonly heartbeatMilliseconds: number;
  private readonly outcomeMilliseconds: number;
  // Separate names, so that no plan is made for one role and used by another.
  private readonly tenantNames = new StatementNames('tenant');
  private readonly systemNames = new StatementNames('system');
  private readonly frequentNames = new StatementNames('tenant');
  private readonly frequentSystemNames = new StatementNames('system');
  private attributes: Attributes | undefined;
  private readonly closing = new AbortController();
  private readonly listener: Listener;
  private readonly hints: Hints;

  constructor(url: string, logger: Logger, options: DatabaseOptions = {}) {
    this.url = url;
    this.directUrl = options.directUrl || url;
    this.logger = logger;
    this.statementMilliseconds = options.statementMilliseconds ?? defaultStatementMilliseconds;
    this.loopMilliseconds = options.loopMilliseconds ?? defaultLoopMilliseconds;
    const bounds = boundsOf(this.statementMilliseconds);
    this.tenantScope = setting({ ...tenantSettings, ...transactionBoundsOf(this.statementMilliseconds) });
    this.readScope = setting({ ...tenantSettings, ...readSettings, ...bounds });
    this.systemReadScope = setting({ ...readSettings, ...bounds });
    this.systemBounds = systemBoundsOf(this.loopMilliseconds);
    this.repeatableScope = setting(boundsOf(this.loopMilliseconds));
    this.heartbeatMilliseconds = options.heartbeatMilliseconds ?? defaultHeartbeatMilliseconds;
    this.outcomeMilliseconds = options.outcomeMilliseconds ?? defaultOutcomeMilliseconds;
    this.connections = new ConnectionPool(url, logger, {
      maximumConnections: options.maximumConnections ?? 20,
      statementMilliseconds: this.statementMilliseconds,
      slowStatements: options.slowStatements,
      isPooled: this.directUrl !== url,
    });
    const [hintsName, hintsText] = [
      'hints',
      'SELECT pg_notify(c, p) FROM unnest($1::text[], $2::text[]) AS hint (c, p)',
    ];
    const droppedHints =
      options.metrics &&
      counter(options.metrics, 'kellet_hints_dropped_total', 'Hints replaced by one for all who listen.', ['channel']);
    this.hints = new Hints(
      (hints) => {
        const values = [hints.map(([channel]) => channel), hints.map(([, payload]) => payload)];
        return this.single(hintsName, { text: hintsText, values }, this.statementMilliseconds);
      },
      (channel, count) => {
        droppedHints?.inc({ channel }, count);
        logger.warn({ channel, count }, 'hints dropped: all who listen on the channel look again');
      },
    );
    this.listener = new Listener({
      connect: async () => {
        try {
          return await this.dedicated('listener', this.heartbeatMilliseconds);
        } catch (error) {
          if (isSilence(error)) this.connections.unreachable(this.heartbeatMilliseconds);
          throw error;
        }
      },
      lost: () => this.doubt(),
      ...{ heartbeatMilliseconds: this.heartbeatMilliseconds, signal: this.closing.signal, logger },
    });
  }

  /** For queries that are no transaction of ours. */
  get pool(): pg.Pool {
    return this.connections.pool;
  }

  /**
   * Runs one frequent statement by itself, without the limits of a transaction: it is prepared under its name. Rejects
   * if there is no response within `milliseconds`.
   */
  single<Row extends pg.QueryResultRow>(
    name: string,
    statement: Statement,
    milliseconds: number,
  ): Promise<pg.QueryResult<Row>> {
    return this.connections.single(name, statement, milliseconds);
  }

  /** Records that a connection outside the pool was lost. */
  doubt(): void {
    this.connections.doubt();
  }

  /** Resolves if the database responds and accepts writes; rejects with the reason otherwise. */
  ping(): Promise<void> {
    return this.connections.ping();
  }

  /**
   * Runs `work` in one transaction as the role `kellet_tenant`: row-level security limits it to the tenant's rows,
   * whatever its queries omit. Throws UNAVAILABLE if the database cannot be reached, in which case nothing was changed,
   * and DEADLINE_EXCEEDED if it was lost while committing and did not come back to tell the outcome.
   */
  async tenant<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    const opening = [begin, { ...this.tenantScope, values: [tenantId] }];
    return this.transaction(tenantId, opening, work, this.statementMilliseconds);
  }

  /** Like `tenant`, for several reads that must see the same state. */
  async tenantSnapshot<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    const opening = [beginSnapshot, { ...this.tenantScope, values: [tenantId] }];
    return this.transaction(tenantId, opening, work, this.statementMilliseconds);
  }

  /**
   * Like `tenant`, for calls that many clients make at once: statements that recur are planned once per connection, which
   * saves about half of PostgreSQL's time for small ones. A prepared statement that has become stale fails the transaction:
   * run it with retryConflicts.
   */
  async frequent<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    const opening = [begin, { ...this.tenantScope, values: [tenantId] }];
    return this.transaction(tenantId, opening, work, this.statementMilliseconds, this.frequentNames);
  }

  /** Runs `work` in one transaction across tenants: for the loops of the data plane, never for a caller's request. */
  async system<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction(ownerOfCall(), [begin, ...this.systemBounds], work, this.loopMilliseconds);
  }

  /**
   * Runs a frequent statement as a transaction of its own across tenants: in one message and prepared, it costs half of
   * `system`. Throws UNAVAILABLE if the connection is lost, when it may have been committed nevertheless: for statements that
   * may be repeated.
   */
  async repeatable(statement: Statement & { readonly name: string }): Promise<void> {
    await this.inSpan('transaction', () => this.sendAlone(ownerOfCall(), this.repeatableScope, [statement]));
  }

  /**
   * Like `system`, for transactions that a loop repeats thousands of times: their statements are planned once per connection.
   * Rejects, once, if a prepared statement has become stale; the loop then repeats its work.
   */
  async frequentSystem<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const opening = [begin, ...this.systemBounds];
    return this.transaction(ownerOfCall(), opening, work, this.loopMilliseconds, this.frequentSystemNames);
  }

  /** Like `system`, for work on whole tables whose statements may take minutes. */
  async maintenance<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction('', [begin, ...maintenanceBounds], work, maintenanceMilliseconds);
  }

  /**
   * Reads like `tenant` at a fraction of its cost: queries that `work` issues before its first await go to the server
   * in one message and return in one, and frequent ones are planned once per connection. Later queries form another
   * message with another snapshot. Statements that write or lock fail.
   *
   * The reason: most of the cost of a small read is not the read. `GET device` takes three lookups by key; with BEGIN,
   * SET LOCAL and COMMIT they were five messages, and each lookup was parsed and planned again. In one message they
   * take 0.6 of that processor time in PostgreSQL and 0.7 in the apiserver; with prepared statements also, 0.22 and 0.5
   * (`make bench ONLY=gateway-get` prints both). The tenant cannot be set inside the reading statement, because
   * row-level security is added to a statement before it runs, for the role that is current then. So the statement that
   * sets the role and the tenant comes first in the message. A message is one transaction: its end resets role and
   * tenant, and once a statement in it has failed, the server runs none of the rest. At no point can a later statement
   * run in another scope.
   */
  async read<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    return this.readIn(tenantId, { ...this.readScope, values: [tenantId] }, this.tenantNames, work);
  }

  /**
   * Like `read`, but across tenants: for what a request needs before its tenant is known (resolving its credential),
   * for platform administrators, and for loops.
   */
  async systemRead<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.readIn(ownerOfCall(), this.systemReadScope, this.systemNames, work);
  }

  private readIn<T>(
    owner: string,
    scope: Statement,
    names: StatementNames,
    work: (tx: Transaction) => Promise<T>,
  ): Promise<T> {
    const queue = new StatementQueue((statements) => {
      const named = statements.map((statement) => ({ ...statement, name: names.nameOf(statement.text) }));
      return this.sendAlone(owner, scope, named);
    });
    return this.inSpan('read', async () => {
      try {
        return await work(queue);
      } finally {
        queue.end();
      }
    });
  }

  /** Sends a batch that is its own transaction and can safely be sent twice. */
  private async sendAlone(
    owner: string,
    scope: Statement,
    statements: readonly Statement[],
  ): Promise<Result<pg.QueryResultRow>[]> {
    const { client, release } = await this.connections.connect(owner);
    const send = () => this.connections.send(client, [scope], statements, this.statementMilliseconds);
    let broken: Error | undefined;
    try {
      return await send().catch((error: unknown) => {
        if (isStale(error)) return send();
        throw error;
      });
    } catch (error) {
      if (isTimeout(error)) throw unavailable(tookTooLong, error);
      if (!isConnectionError(error)) throw error;
      broken = error as Error;
      throw unavailable('the database is unavailable', error);
    } finally {
      release(broken);
    }
  }

  private transaction<T>(
    owner: string,
    opening: readonly Statement[],
    work: (tx: Transaction) => Promise<T>,
    timeoutMilliseconds: number,
    names?: StatementNames,
  ): Promise<T> {
    return this.inSpan('transaction', () => this.runTransaction(owner, opening, work, timeoutMilliseconds, names));
  }

  /**
   * Runs work in its own span below the current call. Loops are not part of a call and get no spans, which would drown
   * out the rest.
   */
  private inSpan<T>(operation: 'read' | 'transaction', work: () => Promise<T>): Promise<T> {
    const trace = beginClientSpan(
      operation,
      () => ({ ...this.spanAttributes(), 'db.operation.name': operation }),
      false,
    );
    if (!trace) return work();
    return inTrace(trace, work).then(
      (result) => {
        endTrace(trace, {});
        return result;
      },
      (error: unknown) => {
        const { state, type } = failureOf(error);
        endTrace(trace, state === undefined ? {} : { 'db.response.status_code': state }, type);
        throw error;
      },
    );
  }

  /** Attributes according to OpenTelemetry's semantic conventions for databases. */
  private spanAttributes(): Attributes {
    if (!this.attributes) {
      // Never connected: it only parses the URL, as the pool's clients do.
      const { host, port, database = '' } = new pg.Client({ connectionString: this.url });
      this.attributes = {
        ...{ 'db.system.name': 'postgresql', 'db.namespace': database },
        ...{ 'server.address': host, 'server.port': port },
      };
    }
    return this.attributes;
  }

  /** The statements that open the transaction travel with its first queries; work without queries opens none. */
  private async runTransaction<T>(
    owner: string,
    opening: readonly Statement[],
    work: (tx: Transaction) => Promise<T>,
    timeoutMilliseconds: number,
    names: StatementNames | undefined,
  ): Promise<T> {
    const { client, release } = await this.connections.connect(owner);
    let isOpen = false;
    let hasFailed = false;
    let broken: Error | undefined;
    let id: string | undefined;
    let lostCommit: Error | undefined;
    const queue = new StatementQueue(async (asked) => {
      const requested = names
        ? asked.map((statement) => ({ ...statement, name: names.nameOf(statement.text) }))
        : asked;
      // The failed statement may be the one that opens the transaction: later ones would run outside of it, across
      // tenants.
      if (hasFailed) throw new Error('a statement of the transaction has failed: none can follow');
      const wasOpen = isOpen;
      isOpen = true;
      const asksId = id === undefined && requested.some(mayWrite);
      const statements = asksId ? [...requested, transactionId] : requested;
      try {
        const results = wasOpen
          ? await this.connections.send(client, [], statements, timeoutMilliseconds)
          : await this.open(client, opening, statements, timeoutMilliseconds);
        if (asksId) id = (results.pop()!.rows[0]!['id'] as string | null) ?? undefined;
        return results;
      } catch (error) {
        hasFailed = true;
        throw error;
      }
    });
    let result: T;
    try {
      result = await work(queue);
      queue.end();
      if (isOpen) {
        await this.connections
          .send(client, [], [hasFailed ? rollback : commit], timeoutMilliseconds)
          .catch((error: unknown) => {
            if (hasFailed || id === undefined || !isConnectionError(error)) throw error;
            broken = lostCommit = error as Error;
          });
      }
    } catch (error) {
      queue.end();
      if (isConnectionError(error)) {
        broken = error as Error;
        throw unavailable('the database is unavailable', error);
      }
      if (isOpen)
        await this.connections
          .send(client, [], [rollback], timeoutMilliseconds)
          .catch((failure: Error) => (broken = failure));
      if (isTimeout(error)) throw unavailable(tookTooLong, error);
      if (isReadOnlyServer(error)) throw unavailable('the database does not accept writes', error);
      throw error;
    } finally {
      release(broken);
    }
    if (lostCommit)
      await confirmCommit(
        (...query) => this.systemRead((tx) => tx.query(...query)),
        id!,
        lostCommit,
        this.outcomeMilliseconds,
      );
    if (hasFailed) return result;
    if (id !== undefined) markChanged();
    this.hints.add(queue.hints);
    return result;
  }

  /** Opens a transaction with its first statements; retries if a connection has lost its prepared statements. */
  private async open(
    client: pg.PoolClient,
    opening: readonly Statement[],
    statements: readonly Statement[],
    timeoutMilliseconds: number,
  ): Promise<Result<pg.QueryResultRow>[]> {
    try {
      return await this.connections.send(client, opening, statements, timeoutMilliseconds);
    } catch (error) {
      if (!isStale(error)) throw error;
      await this.connections.send(client, [], [rollback], timeoutMilliseconds);
      return this.connections.send(client, opening, statements, timeoutMilliseconds);
    }
  }

  /**
   * Opens a separate connection outside the pool (telemetry writers, advisory locks), which the caller must end. The
   * server cancels its statements after `statementMilliseconds` (0: never). The caller must detect a dead connection
   * while it is idle.
   */
  async dedicated(name: string, statementMilliseconds: number): Promise<pg.Client> {
    const client = new pg.Client(connectionOptions(this.directUrl, `kellet-${name}`));
    client.on('error', (error) => this.logger.warn({ err: error, connection: name }, 'database connection lost'));
    try {
      await client.connect();
      await prepareSession(client, statementMilliseconds);
    } catch (error) {
      cutOff(client);
      throw error;
    }
    return client;
  }

  /**
   * Listens on notification channels for the lifetime of the database object, on the one connection that all who listen share;
   * reconnects with increasing delay. Between `state(true)` and `state(false)` notifications may have been missed.
   */
  listen(channels: readonly string[], receive: (channel: string, payload: string) => void, state: ListenerState): void {
    this.listener.add(channels, receive, state);
  }

  /** Tells those who listen on a channel, like the hint of a transaction, what was committed outside of one. */
  hint(channel: string): void {
    this.hints.add([[channel, '']]);
  }

  /** Ends the listener and the pool once running transactions have ended. */
  async close(): Promise<void> {
    this.closing.abort();
    await this.listener.ended();
    await this.hints.end();
    await this.pool.end();
  }
}

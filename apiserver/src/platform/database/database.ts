// PostgreSQL: one pool, with reads and transactions scoped to a tenant or to the system, and notifications.
import { setTimeout as sleep } from 'node:timers/promises';
import type { Attributes } from '@opentelemetry/api';
import pg from 'pg';
import { connectionOptions, cutOff, prepareSession } from './connection.ts';
import { codes, KelletError, sqlState, unavailable } from '../errors.ts';
import type { Logger } from '../observability/logger.ts';
import { keepListening, type ListenerState } from './listen.ts';
import type { SlowStatements } from './slow-statements.ts';
import {
  isStale,
  named,
  sendBatch,
  StatementNames,
  StatementQueue,
  type Result,
  type Statement,
} from './statement-batch.ts';
import { beginClientSpan, endTrace, inTrace } from '../observability/tracing.ts';

// int8 holds nanoseconds and sizes beyond 2^53; everything smaller is int4 in Kellet's tables.
pg.types.setTypeParser(pg.types.builtins.INT8, (text) => BigInt(text));

/**
 * The interface stores use: parameterised queries inside a transaction, one statement each. Queries issued together
 * before an await (Promise.all) share one round trip.
 */
export interface Transaction {
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Result<Row>>;
}

/** Statement timeout of requests; none should take even a fraction of it. */
const defaultStatementMilliseconds = 15_000;

/** Statement timeout of loops. */
const defaultLoopMilliseconds = 30_000;

/** Statement timeout of maintenance, such as building an index or reading a whole table. */
const maintenanceMilliseconds = 600_000;

/** How long a transaction may idle while its client calls another server, before PostgreSQL ends it. */
const idleMilliseconds = 120_000;

/**
 * Margin on top of the server's statement timeout. A server that has not responded by then is considered dead, and the
 * connection is closed.
 */
const responseMilliseconds = 2000;

/** Timeout of a ping. */
const pingMilliseconds = 2000;

/** Default of `outcomeMilliseconds`. */
const defaultOutcomeMilliseconds = 30_000;

/** Interval and timeout of the heartbeat on a listening connection. */
const defaultHeartbeatMilliseconds = 3_000;

// Unnamed: there is little to parse, and a connection that has lost its prepared statements must still be able to end
// what it has begun.
const begin: Statement = { text: 'BEGIN' };
const commit: Statement = { text: 'COMMIT' };
const rollback: Statement = { text: 'ROLLBACK' };

// The id by which the server knows a transaction that has written something, even after its connection is lost.
const transactionId = named('transaction', 'SELECT pg_current_xact_id_if_assigned()::text AS id');
// Needs no privileges: the session belongs to the same user.
const endIdleTransaction = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE backend_xid = $1::text::xid8::xid AND state = 'idle in transaction' AND usename = current_user`;
const reads = /^\s*(select|show|set)\b/i;
const mayWrite = ({ text }: Statement): boolean => !reads.test(text);

// Settings hold until the transaction ends, as with SET LOCAL, so they work through a pooler. They travel with the
// first statements, so they cost no round trip. A statement of this form is parsed only once.
const columns = (settings: Readonly<Record<string, string>>) =>
  Object.entries(settings).map(([name, value]) => `set_config('${name}', ${value}, true)`);
const setting = (settings: Readonly<Record<string, string>>) =>
  named('scope', `SELECT ${columns(settings).join(', ')}`);

const tenantSettings = { role: "'kellet_tenant'", 'kellet.tenant_id': '$1' };
const readSettings = { transaction_read_only: "'on'" };
const boundsOf = (milliseconds: number) => ({ statement_timeout: `'${milliseconds}'` });
const transactionBoundsOf = (milliseconds: number) => ({
  ...boundsOf(milliseconds),
  idle_in_transaction_session_timeout: `'${idleMilliseconds}'`,
});

// Utility statements, after which a transaction may still choose its isolation level.
const systemBoundsOf = (milliseconds: number): Statement[] =>
  Object.entries(transactionBoundsOf(milliseconds)).map(([name, value]) => ({ text: `SET LOCAL ${name} = ${value}` }));
const maintenanceBounds = systemBoundsOf(maintenanceMilliseconds);

function checkTenantId(tenantId: string): void {
  if (!/^[a-z0-9]([-a-z0-9]*[a-z0-9])?$/.test(tenantId)) throw new Error('not a tenant id');
}

/** Options of a database; the defaults are for production. */
export interface DatabaseOptions {
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
}

/** The database of the data plane. */
export class Database {
  readonly pool: pg.Pool;
  private readonly url: string;
  private readonly logger: Logger;
  private readonly statementMilliseconds: number;
  private readonly loopMilliseconds: number;
  private readonly tenantScope: Statement;
  private readonly readScope: Statement;
  private readonly systemReadScope: Statement;
  private readonly systemBounds: readonly Statement[];
  private readonly heartbeatMilliseconds: number;
  private readonly outcomeMilliseconds: number;
  private readonly slowStatements: SlowStatements | undefined;
  // Separate names, so that no plan is made for one role and used by another.
  private readonly tenantNames = new StatementNames('tenant');
  private readonly systemNames = new StatementNames('system');
  private attributes: Attributes | undefined;
  /** When each pooled connection last worked, in milliseconds of performance.now. */
  private readonly heardAt = new WeakMap<pg.PoolClient, number>();
  /** Connections last heard from before this time are not reused. */
  private doubtedAt = 0;
  /** Since when each connection has an outstanding response. */
  private readonly sentAt = new Map<pg.PoolClient, number>();
  private readonly closing = new AbortController();
  private readonly listeners = new Set<Promise<void>>();

  constructor(url: string, logger: Logger, options: DatabaseOptions = {}) {
    this.url = url;
    this.logger = logger;
    this.statementMilliseconds = options.statementMilliseconds ?? defaultStatementMilliseconds;
    this.loopMilliseconds = options.loopMilliseconds ?? defaultLoopMilliseconds;
    const bounds = boundsOf(this.statementMilliseconds);
    this.tenantScope = setting({ ...tenantSettings, ...transactionBoundsOf(this.statementMilliseconds) });
    this.readScope = setting({ ...tenantSettings, ...readSettings, ...bounds });
    this.systemReadScope = setting({ ...readSettings, ...bounds });
    this.systemBounds = systemBoundsOf(this.loopMilliseconds);
    this.heartbeatMilliseconds = options.heartbeatMilliseconds ?? defaultHeartbeatMilliseconds;
    this.outcomeMilliseconds = options.outcomeMilliseconds ?? defaultOutcomeMilliseconds;
    this.slowStatements = options.slowStatements;
    // The pool awaits it, though pg's types do not say so.
    const onConnect = (client: pg.ClientBase): unknown => prepareSession(client, this.statementMilliseconds);
    this.pool = new pg.Pool({
      ...connectionOptions(url, 'kellet-apiserver'),
      max: options.maximumConnections ?? 20,
      // For queries on the pool itself; transactions set their own timeouts.
      query_timeout: this.statementMilliseconds + responseMilliseconds,
      onConnect,
    });
    this.pool.on('error', (error) => logger.warn({ err: error }, 'idle database connection lost'));
    // The pool listens on idle connections only, and an error without a listener would end the process. The pool
    // discards lost connections by itself.
    this.pool.on('connect', (client) => client.on('error', () => undefined));
  }

  /**
   * Runs `work` in one transaction as the role `kellet_tenant`: row-level security limits it to the tenant's rows,
   * whatever its queries omit. Throws UNAVAILABLE if the database cannot be reached, in which case nothing was changed,
   * and DEADLINE_EXCEEDED if it was lost while committing and did not come back to tell the outcome.
   */
  async tenant<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    return this.transaction([begin, { ...this.tenantScope, values: [tenantId] }], work, this.statementMilliseconds);
  }

  /** Runs `work` in one transaction across tenants: for the loops of the data plane, never for a caller's request. */
  async system<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction([begin, ...this.systemBounds], work, this.loopMilliseconds);
  }

  /** Like `system`, for work on whole tables whose statements may take minutes. */
  async maintenance<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction([begin, ...maintenanceBounds], work, maintenanceMilliseconds);
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
    return this.readIn({ ...this.readScope, values: [tenantId] }, this.tenantNames, work);
  }

  /**
   * Like `read`, but across tenants: for what a request needs before its tenant is known (resolving its credential),
   * for platform administrators, and for loops.
   */
  async systemRead<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.readIn(this.systemReadScope, this.systemNames, work);
  }

  private readIn<T>(scope: Statement, names: StatementNames, work: (tx: Transaction) => Promise<T>): Promise<T> {
    const queue = new StatementQueue((statements) => {
      const named = statements.map((statement) => ({ ...statement, name: names.nameOf(statement.text) }));
      return this.sendAlone(scope, named);
    });
    return this.inSpan('read', async () => {
      try {
        return await work(queue);
      } finally {
        queue.end();
      }
    });
  }

  /** Sends a batch that is a transaction of its own and can safely be sent twice. */
  private async sendAlone(scope: Statement, statements: readonly Statement[]): Promise<Result<pg.QueryResultRow>[]> {
    const client = await this.connect();
    const send = () => this.send(client, [scope], statements, this.statementMilliseconds);
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
      client.release(broken);
    }
  }

  private transaction<T>(
    opening: readonly Statement[],
    work: (tx: Transaction) => Promise<T>,
    timeout: number,
  ): Promise<T> {
    return this.inSpan('transaction', () => this.runTransaction(opening, work, timeout));
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
    opening: readonly Statement[],
    work: (tx: Transaction) => Promise<T>,
    timeout: number,
  ): Promise<T> {
    const client = await this.connect();
    let isOpen = false;
    let hasFailed = false;
    let broken: Error | undefined;
    let id: string | undefined;
    let lostCommit: Error | undefined;
    const queue = new StatementQueue(async (requested) => {
      // The failed statement may be the one that opens the transaction: later ones would run outside of it, across
      // tenants.
      if (hasFailed) throw new Error('a statement of the transaction has failed: none can follow');
      const wasOpen = isOpen;
      isOpen = true;
      const asksId = id === undefined && requested.some(mayWrite);
      const statements = asksId ? [...requested, transactionId] : requested;
      try {
        const results = wasOpen
          ? await this.send(client, [], statements, timeout)
          : await this.open(client, opening, statements, timeout);
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
        await this.send(client, [], [hasFailed ? rollback : commit], timeout).catch((error: unknown) => {
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
      if (isOpen) await this.send(client, [], [rollback], timeout).catch((failure: Error) => (broken = failure));
      if (isTimeout(error)) throw unavailable(tookTooLong, error);
      if (isReadOnlyServer(error)) throw unavailable('the database does not accept writes', error);
      throw error;
    } finally {
      client.release(broken);
    }
    if (lostCommit) await this.confirm(id!, lostCommit);
    return result;
  }

  /**
   * Returns if a transaction whose COMMIT got no response was committed. Throws UNAVAILABLE if it was not, and
   * DEADLINE_EXCEEDED if the database does not come back in time to tell.
   */
  private async confirm(id: string, lost: Error): Promise<void> {
    const deadline = performance.now() + this.outcomeMilliseconds;
    for (let delay = 25; performance.now() < deadline; delay = Math.min(2 * delay, 1000)) {
      const status = await this.statusOf(id);
      if (status === 'committed') return;
      if (status === 'aborted') throw unavailable('the database is unavailable', lost);
      await sleep(delay, undefined, { ref: false });
    }
    const message = 'the database did not confirm the change in time: it may have been made';
    throw new KelletError('DEADLINE_EXCEEDED', message, { cause: lost });
  }

  /**
   * Returns whether a transaction was committed; undefined while it is in progress or the database is away. Ends the
   * session of a transaction that is still waiting for its COMMIT, so that it cannot be committed later.
   */
  private async statusOf(id: string): Promise<'committed' | 'aborted' | undefined> {
    try {
      const { rows } = await this.systemRead((tx) =>
        tx.query<{ status: string | null }>('SELECT pg_xact_status($1::text::xid8) AS status', [id]),
      );
      const status = rows[0]!.status;
      if (status === 'committed' || status === 'aborted') return status;
      await this.systemRead((tx) => tx.query(endIdleTransaction, [id]));
      return undefined;
    } catch (error) {
      // A server that was promoted without having received the transaction has not given out its id yet.
      if (sqlState(error) === '22023') return 'aborted';
      if (error instanceof KelletError) return undefined;
      throw error;
    }
  }

  /** Opens a transaction with its first statements; retries if a connection has lost its prepared statements. */
  private async open(
    client: pg.PoolClient,
    opening: readonly Statement[],
    statements: readonly Statement[],
    timeout: number,
  ): Promise<Result<pg.QueryResultRow>[]> {
    try {
      return await this.send(client, opening, statements, timeout);
    } catch (error) {
      if (!isStale(error)) throw error;
      await this.send(client, [], [rollback], timeout);
      return this.send(client, opening, statements, timeout);
    }
  }

  /**
   * Sends the statements that open a transaction, if any, together with others, and returns the results of the latter.
   * Rejects if the server has not responded shortly after `timeout`.
   */
  private async send(
    client: pg.PoolClient,
    opening: readonly Statement[],
    statements: readonly Statement[],
    timeout: number,
  ): Promise<Result<pg.QueryResultRow>[]> {
    const started = performance.now();
    this.sentAt.set(client, started);
    let hasFailed = true;
    try {
      const results = await sendBatch(client, [...opening, ...statements], timeout + responseMilliseconds);
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

  private async connect(): Promise<pg.PoolClient> {
    try {
      for (;;) {
        const client = await this.pool.connect();
        if ((this.heardAt.get(client) ?? Infinity) >= this.doubtedAt) return client;
        client.release(true);
      }
    } catch (error) {
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

  /** Called when the server cannot be reached at all: closes connections whose response will never come. */
  private unreachable(): void {
    this.doubt();
    for (const [client, sentAt] of this.sentAt) {
      if (performance.now() - sentAt > this.heartbeatMilliseconds) client.connection.stream.destroy();
    }
  }

  /**
   * Opens a separate connection outside the pool (telemetry writers, advisory locks), which the caller must end. The
   * server cancels its statements after `statementMilliseconds` (0: never). The caller must detect a dead connection
   * while it is idle.
   */
  async dedicated(name: string, statementMilliseconds: number): Promise<pg.Client> {
    const client = new pg.Client(connectionOptions(this.url, `kellet-${name}`));
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

  /** Resolves if the database responds and accepts writes; rejects with the reason otherwise. */
  async ping(): Promise<void> {
    const client = await this.connect();
    let broken: Error | undefined;
    try {
      const [asked] = await sendBatch(client, [{ text: 'SHOW transaction_read_only' }], pingMilliseconds);
      if (asked!.rows[0]!['transaction_read_only'] === 'on') throw new Error('the server does not accept writes');
    } catch (error) {
      broken = error as Error;
      throw error;
    } finally {
      client.release(broken);
    }
  }

  /**
   * Listens on notification channels for the lifetime of the database object; reconnects with increasing delay. Between
   * `state(true)` and `state(false)` notifications may have been missed.
   */
  listen(channels: readonly string[], receive: (channel: string, payload: string) => void, state: ListenerState): void {
    const connect = async () => {
      try {
        return await this.dedicated('listener', this.heartbeatMilliseconds);
      } catch (error) {
        if (isSilence(error)) this.unreachable();
        throw error;
      }
    };
    const changed: ListenerState = (lost) => {
      if (lost) this.doubt();
      state(lost);
    };
    const settings = { heartbeatMilliseconds: this.heartbeatMilliseconds, signal: this.closing.signal };
    const loop = keepListening(connect, channels, receive, changed, settings, this.logger);
    this.listeners.add(loop);
    void loop.finally(() => this.listeners.delete(loop));
  }

  /** Ends listeners and the pool once running transactions have ended. */
  async close(): Promise<void> {
    this.closing.abort();
    await Promise.all(this.listeners);
    await this.pool.end();
  }
}

/**
 * Returns a failed transaction's span attributes: the server's SQLSTATE, or why it was not reached. An error decided by
 * the application within the transaction is not a failure of it.
 */
function failureOf(error: unknown): { state?: string; type?: string } {
  if (error instanceof KelletError) {
    if (codes[error.code].http < 500) return {};
    return error.cause === undefined ? { type: error.code } : { ...failureOf(error.cause), type: error.code };
  }
  if (error instanceof pg.DatabaseError) return { state: error.code, type: error.code };
  return { type: error instanceof Error ? error.name : 'error' };
}

const tookTooLong = 'the database took too long';

/** Reports whether the server cancelled a statement because it ran or waited for a lock too long. */
const isTimeout = (error: unknown): boolean => ['57014', '55P03'].includes(sqlState(error) ?? '');

/** Reports whether the server rejects writes: a standby that has not been promoted. */
const isReadOnlyServer = (error: unknown): boolean => sqlState(error) === '25006';

// Class 08: connection exception; 25P03 and 25P04: a transaction that idled or took too long; 57P01–57P05: shutting
// down, starting up or dropped; 53300: too many connections.
const connectionStates = /^(08...|25P0[34]|57P0[1-5]|53300)$/;
const connectionCodes = new Set([
  ...['ECONNREFUSED', 'ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'ENOENT'],
  ...['EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN', 'ENOTFOUND', 'EAI_AGAIN'],
]);
// pg's own errors, which have no code.
const connectionMessages =
  /Connection terminated|Query read timeout|timeout expired|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed/;

/** Reports whether there was no response at all, as when packets are dropped. */
const isSilence = (error: unknown): boolean =>
  error instanceof Error &&
  ('code' in error
    ? ['ETIMEDOUT', 'EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN'].includes(String(error.code))
    : /timeout expired|Query read timeout/.test(error.message));

/**
 * Reports whether an error means that the server is unavailable or has disconnected, rather than that the statement was
 * wrong.
 */
export function isConnectionError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  return connectionStates.test(code) || connectionCodes.has(code) || connectionMessages.test(error.message);
}

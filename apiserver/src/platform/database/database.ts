// PostgreSQL: one pool, with reads and transactions scoped to a tenant or to the system, and notifications.
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

// int8 holds nanoseconds and sizes beyond 2^53; everything smaller is int4 in our tables.
pg.types.setTypeParser(pg.types.builtins.INT8, (text) => BigInt(text));

/**
 * What a store needs: parameterised queries inside a transaction, one statement each. What is asked for before anything is
 * awaited (Promise.all) goes to the server and back together.
 */
export interface Transaction {
  query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Result<Row>>;
}

/** The longest a statement of a request may run; none should take a fraction of this. */
const defaultStatementMilliseconds = 15_000;

/** The longest a statement of a loop may run. */
const defaultLoopMilliseconds = 30_000;

/** The longest a statement of maintenance may run: building an index, reading a table whole. */
const maintenanceMilliseconds = 600_000;

/** How long a transaction may wait for its client, which may be calling another server, before PostgreSQL ends it. */
const idleMilliseconds = 120_000;

/**
 * PostgreSQL ends a statement that takes too long. When even that is not heard for so much longer, the connection is taken for dead
 * and closed.
 */
const answerMilliseconds = 2000;

/** How long the server may take to answer a ping. */
const pingMilliseconds = 2000;

/** How often a listening connection is asked whether it is still there, and how long it may take to answer. */
const defaultHeartbeatMilliseconds = 3_000;

// Without names: there is little to parse, and a connection that has lost what it had prepared must still be able to end what it
// has begun.
const begin: Statement = { text: 'BEGIN' };
const commit: Statement = { text: 'COMMIT' };
const rollback: Statement = { text: 'ROLLBACK' };

// Settings hold until the transaction ends, as with SET LOCAL, so that they work through a pooler; and they travel with the first
// statements, so that they cost no round trip. A statement of this form is parsed only once.
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

/** What may be set of a database; the defaults are those of production. */
export interface DatabaseOptions {
  readonly maximumConnections?: number;
  /** The longest a statement of a request may run. */
  readonly statementMilliseconds?: number;
  /** The longest a statement of a loop may run. */
  readonly loopMilliseconds?: number;
  readonly heartbeatMilliseconds?: number;
  /** Judges the statements of reads and transactions. */
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
  private readonly slowStatements: SlowStatements | undefined;
  // Apart, so that no plan is ever made for one role and asked for by another.
  private readonly tenantNames = new StatementNames('tenant');
  private readonly systemNames = new StatementNames('system');
  private attributes: Attributes | undefined;
  /** When each connection of the pool was last known to work; milliseconds of performance.now. */
  private readonly heardAt = new WeakMap<pg.PoolClient, number>();
  /** What was not heard of since then is not used again. */
  private doubtedAt = 0;
  /** Since when each connection owes an answer. */
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
    this.slowStatements = options.slowStatements;
    // Awaited by the pool, which pg's types do not say.
    const onConnect = (client: pg.ClientBase): unknown => prepareSession(client, this.statementMilliseconds);
    this.pool = new pg.Pool({
      ...connectionOptions(url, 'kellet-apiserver'),
      max: options.maximumConnections ?? 20,
      // For what is asked of the pool itself; transactions bring bounds of their own.
      query_timeout: this.statementMilliseconds + answerMilliseconds,
      onConnect,
    });
    this.pool.on('error', (error) => logger.warn({ err: error }, 'idle database connection lost'));
    // The pool listens on idle connections only; an error that nobody hears would end the process. It throws away by itself
    // what has been lost.
    this.pool.on('connect', (client) => client.on('error', () => undefined));
  }

  /**
   * Runs `work` in one transaction as the role `kellet_tenant`: row-level security shows it nothing but the tenant's rows,
   * whatever its queries forget. Throws UNAVAILABLE when the database cannot be reached.
   */
  async tenant<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    return this.transaction([begin, { ...this.tenantScope, values: [tenantId] }], work, this.statementMilliseconds);
  }

  /** Runs `work` in one transaction across tenants: for the loops of the data plane, never for a caller's request. */
  async system<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction([begin, ...this.systemBounds], work, this.loopMilliseconds);
  }

  /** Like `system`, for work on whole tables, whose statements may take minutes. */
  async maintenance<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    return this.transaction([begin, ...maintenanceBounds], work, maintenanceMilliseconds);
  }

  /**
   * Reads as `tenant` does, at a fraction of its cost: what `work` asks for before it awaits anything goes to the server in
   * one message and comes back in one, and what is read often is planned once on each connection. What it asks for later
   * is another message, with another snapshot. Statements that write or lock are refused.
   *
   * Why so: most of what a small read costs is not the read. `GET device` takes three lookups by key; with BEGIN, SET LOCAL
   * and COMMIT they were five messages, and each lookup was parsed and planned anew. In one message they cost PostgreSQL
   * 0.6 of that processor time and the apiserver 0.7; prepared as well, 0.22 and 0.5 (`make bench ONLY=gateway-get` prints
   * both). The tenant cannot be set inside the reading statement: row-level security is put into a statement before it runs,
   * for the role that holds then. So the statement that takes the role and the tenant comes first in the message. A
   * message is one transaction: its end gives role and tenant back, and once a statement of it has failed the server runs
   * none of the rest. There is no moment at which what follows could run in another scope than this one.
   */
  async read<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    checkTenantId(tenantId);
    return this.readIn({ ...this.readScope, values: [tenantId] }, this.tenantNames, work);
  }

  /**
   * Reads across tenants, and otherwise as `read` does: for what a request needs before its tenant is known (whose credential
   * it brings), for platform administrators, and for loops.
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

  /** Sends a batch that is a transaction of its own and harmless to send twice. */
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

  /** Runs work in a span of its own below the call that it is part of; loops, which are part of none, would drown the rest. */
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

  /** OpenTelemetry's semantic conventions for databases. */
  private spanAttributes(): Attributes {
    if (!this.attributes) {
      // Not connected: it only reads the URL, as those of the pool do.
      const { host, port, database = '' } = new pg.Client({ connectionString: this.url });
      this.attributes = {
        ...{ 'db.system.name': 'postgresql', 'db.namespace': database },
        ...{ 'server.address': host, 'server.port': port },
      };
    }
    return this.attributes;
  }

  /** What opens the transaction travels with its first statements; work that asks for none opens none. */
  private async runTransaction<T>(
    opening: readonly Statement[],
    work: (tx: Transaction) => Promise<T>,
    timeout: number,
  ): Promise<T> {
    const client = await this.connect();
    let isOpen = false;
    let hasFailed = false;
    let broken: Error | undefined;
    const queue = new StatementQueue(async (statements) => {
      // What failed may be what opens the transaction: what came next would run outside of it, across tenants.
      if (hasFailed) throw new Error('a statement of the transaction has failed: none can follow');
      const wasOpen = isOpen;
      isOpen = true;
      try {
        if (wasOpen) return await this.send(client, [], statements, timeout);
        return await this.open(client, opening, statements, timeout);
      } catch (error) {
        hasFailed = true;
        throw error;
      }
    });
    try {
      const result = await work(queue);
      queue.end();
      if (isOpen) await this.send(client, [], [hasFailed ? rollback : commit], timeout);
      return result;
    } catch (error) {
      queue.end();
      if (isConnectionError(error)) {
        broken = error as Error;
        throw unavailable('the database is unavailable', error);
      }
      if (isOpen) await this.send(client, [], [rollback], timeout).catch((failure: Error) => (broken = failure));
      if (isTimeout(error)) throw unavailable(tookTooLong, error);
      if (isReadOnlyServer(error)) throw unavailable('the database takes no writes', error);
      throw error;
    } finally {
      client.release(broken);
    }
  }

  /** Opens a transaction with its first statements; with another attempt when a connection has lost what it had prepared. */
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
   * Sends what opens a transaction, if anything does, and statements together; returns the results of the statements. Rejects when
   * the server has not answered a little after `timeout`.
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
      const results = await sendBatch(client, [...opening, ...statements], timeout + answerMilliseconds);
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
   * Says that a connection was lost: those that wait in the pool may have gone with it, unnoticed, and are made anew rather than cost
   * a caller each its whole patience.
   */
  doubt(): void {
    this.doubtedAt = performance.now();
  }

  /** The server cannot be reached at all: whoever waits for an answer of it waits in vain. */
  private unreachable(): void {
    this.doubt();
    for (const [client, sentAt] of this.sentAt) {
      if (performance.now() - sentAt > this.heartbeatMilliseconds) client.connection.stream.destroy();
    }
  }

  /**
   * A connection of its own, outside the pool (telemetry writers, advisory locks). The caller ends it. Its statements are ended by
   * the server after `statementMilliseconds` (0: never); whether the connection still lives while it says nothing is for the caller
   * to find out.
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

  /** Resolves when the database answers and takes writes; rejects with the reason otherwise. */
  async ping(): Promise<void> {
    const client = await this.connect();
    let broken: Error | undefined;
    try {
      const [asked] = await sendBatch(client, [{ text: 'SHOW transaction_read_only' }], pingMilliseconds);
      if (asked!.rows[0]!['transaction_read_only'] === 'on') throw new Error('the server takes no writes');
    } catch (error) {
      broken = error as Error;
      throw error;
    } finally {
      client.release(broken);
    }
  }

  /**
   * Listens on notification channels for as long as the database object lives; reconnects with growing delay. Between
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

  /** Ends listeners and the pool, once running transactions have ended. */
  async close(): Promise<void> {
    this.closing.abort();
    await Promise.all(this.listeners);
    await this.pool.end();
  }
}

/**
 * What a span says of a transaction that failed: the server's code (SQLSTATE), or why it was not reached. A refusal that was
 * decided in the transaction is no failure of it.
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

/** Whether the server ended a statement because it ran or waited for a lock too long. */
const isTimeout = (error: unknown): boolean => ['57014', '55P03'].includes(sqlState(error) ?? '');

/** Whether the server refuses to write: a standby that is not promoted yet. */
const isReadOnlyServer = (error: unknown): boolean => sqlState(error) === '25006';

// Class 08 connection exception, 25P03 and 25P04 a transaction that idled or took too long, 57P01–57P05 shutting down, starting up
// or dropped, 53300 too many connections.
const connectionStates = /^(08...|25P0[34]|57P0[1-5]|53300)$/;
const connectionCodes = new Set([
  ...['ECONNREFUSED', 'ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'ENOENT'],
  ...['EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN', 'ENOTFOUND', 'EAI_AGAIN'],
]);
// pg's own, which have no code.
const connectionMessages =
  /Connection terminated|Query read timeout|timeout expired|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed/;

/** Whether nothing answered at all, as when packets are dropped. */
const isSilence = (error: unknown): boolean =>
  error instanceof Error &&
  ('code' in error
    ? ['ETIMEDOUT', 'EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN'].includes(String(error.code))
    : /timeout expired|Query read timeout/.test(error.message));

/** Whether a failure says that the server is away or has dropped us, rather than that the statement was wrong. */
export function isConnectionError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  return connectionStates.test(code) || connectionCodes.has(code) || connectionMessages.test(error.message);
}

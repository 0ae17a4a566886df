// Batches statements: one message to PostgreSQL with all of them, and one back with all results.
// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-PIPELINING
import { createHash } from 'node:crypto';
import pg from 'pg';
import { prepareValue } from 'pg/lib/utils.js';
import type { Hint } from './hints.ts';
import { replicationFailure, watchReplication } from './replication-wait.ts';

/** A statement and its parameters. */
export interface Statement {
  readonly text: string;
  readonly values?: readonly unknown[];
  /** Parsed and planned once per connection and known there by this name. The text of a name never changes. */
  readonly name?: string | undefined;
}

/** The result of a statement. */
export interface Result<Row> {
  readonly rows: Row[];
  /** Rows read or changed; null for statements without a count (BEGIN). */
  readonly rowCount: number | null;
}

type Parser = (text: string) => unknown;

/** The names and parsers of a row's fields. */
interface Columns {
  readonly names: readonly string[];
  readonly parsers: readonly Parser[];
}

const noColumns: Columns = { names: [], parsers: [] };

/** The named statements of each connection, with their columns, which the server need not describe again. */
const known = new WeakMap<pg.Connection, Map<string, Columns>>();

/**
 * The result of a prepared statement has changed shape (0A000), or the connection has lost it (26000). Only the code is
 * checked, because the message is in the server's language.
 */
const staleStates: ReadonlySet<string> = new Set(['0A000', '26000']);

/** Reports whether a batch may have failed because of stale prepared statements, so that a retry succeeds. */
export const isStale = (error: unknown): boolean =>
  error instanceof pg.DatabaseError && staleStates.has(error.code ?? '');

/**
 * Sends statements in one write and resolves with their results once the server is ready for more. Outside a
 * transaction block they form one transaction, ended by the end of the message. In either case the server runs nothing
 * after the first statement that fails, and all of them reject with its error. `milliseconds` limits the wait (0: no
 * limit); a connection that has not responded by then must not be used any more. Rejects with DEADLINE_EXCEEDED if
 * they were committed but no synchronous replica has confirmed it.
 */
export function sendBatch(
  client: pg.ClientBase,
  statements: readonly Statement[],
  milliseconds: number,
): Promise<Result<pg.QueryResultRow>[]> {
  return new Promise((resolve, reject) => {
    client.query(
      new StatementBatch(statements, milliseconds, (error, results) => (error ? reject(error) : resolve(results!))),
    );
  });
}

type Settle = (error: Error | null, results?: Result<pg.QueryResultRow>[]) => void;

/** A Submittable of pg, which dispatches the server's responses to it. */
class StatementBatch implements pg.Submittable {
  /** Both are read by pg, which replaces the callback to limit the wait. */
  readonly query_timeout: number;
  callback: Settle;
  private readonly statements: readonly Statement[];
  private readonly results: Result<pg.QueryResultRow>[] = [];
  private prepared: Map<string, Columns> = new Map();
  private columns = noColumns;
  private rows: pg.QueryResultRow[] = [];
  private failure: Error | undefined;
  private connection: pg.Connection | undefined;

  constructor(statements: readonly Statement[], milliseconds: number, settle: Settle) {
    this.statements = statements;
    this.query_timeout = milliseconds;
    this.callback = settle;
  }

  submit(connection: pg.Connection): Error | null {
    let values: (Buffer | string | null)[][];
    try {
      values = this.statements.map((statement) => (statement.values ?? []).map(parameterOf));
    } catch (error) {
      return error as Error;
    }
    this.connection = connection;
    watchReplication(connection);
    this.prepared = known.get(connection) ?? new Map<string, Columns>();
    known.set(connection, this.prepared);
    connection.stream.cork();
    for (const [index, { text, name = '' }] of this.statements.entries()) {
      const isKnown = this.prepared.has(name);
      if (!isKnown) {
        // Closes the name first: a batch that failed after parsing would have left it behind.
        if (name !== '') connection.close({ type: 'S', name }, true);
        connection.parse({ name, text, types: [] }, true);
      }
      connection.bind({ statement: name, values: values[index] }, true);
      if (!isKnown) connection.describe({ type: 'P', name: '' }, true);
      connection.execute(null, true);
    }
    connection.sync();
    connection.stream.uncork();
    this.expect(0);
    return null;
  }

  /** Prepares for the responses to a statement. */
  private expect(index: number): void {
    this.columns = this.prepared.get(this.statements[index]?.name ?? '') ?? noColumns;
    this.rows = [];
  }

  handleRowDescription(message: { fields: readonly pg.FieldDef[] }): void {
    this.columns = {
      names: message.fields.map((field) => field.name),
      parsers: message.fields.map((field) => pg.types.getTypeParser(field.dataTypeID, 'text') as Parser),
    };
  }

  handleDataRow(message: { fields: readonly (string | null)[] }): void {
    const { names, parsers } = this.columns;
    const row: pg.QueryResultRow = {};
    try {
      for (let index = 0; index < names.length; index += 1) {
        const text = message.fields[index]!;
        row[names[index]!] = text === null ? null : parsers[index]!(text);
      }
    } catch (error) {
      this.failure ??= error as Error;
    }
    this.rows.push(row);
  }

  handleCommandComplete(message: { text: string }): void {
    const count = /\d+$/.exec(message.text);
    this.complete(count ? Number(count[0]) : null);
  }

  handleEmptyQuery(): void {
    this.complete(null);
  }

  private complete(rowCount: number | null): void {
    const name = this.statements[this.results.length]?.name;
    if (name !== undefined) this.prepared.set(name, this.columns);
    this.results.push({ rows: this.rows, rowCount });
    this.expect(this.results.length);
  }

  handleReadyForQuery(): void {
    this.callback(this.failure ?? replicationFailure(this.connection!) ?? null, this.results);
  }

  // Called for an error of the server, which pg follows with ReadyForQuery, or for a lost connection.
  handleError(error: Error): void {
    if (isStale(error)) this.prepared.clear();
    this.callback(error);
  }

  /** Discards the output of COPY … TO STDOUT: pg would throw for a missing handler. */
  handleCopyData(): void {}

  handleCopyInResponse(connection: { sendCopyFail(reason: string): void }): void {
    connection.sendCopyFail('a batch of statements has no data to copy');
  }
}

/** What must be escaped within the quotes of an array's element. */
const special = /["\\]/;

/** Returns a value in the form in which pg sends it. Plain arrays, of which multi-row statements consist, take a third of pg's time. */
export function parameterOf(value: unknown): Buffer | string | null {
  return (Array.isArray(value) ? plainArray(value) : undefined) ?? prepareValue(value);
}

/** Returns an array of texts, numbers and nulls as PostgreSQL reads it, or undefined if it has other elements. */
function plainArray(elements: readonly unknown[]): string | undefined {
  let text = '';
  for (const element of elements) {
    if (typeof element === 'string')
      text += `,"${special.test(element) ? element.replaceAll(/["\\]/g, '\\$&') : element}"`;
    else if (typeof element === 'number' || typeof element === 'bigint') text += `,"${element}"`;
    else if (element === null) text += ',NULL';
    else return undefined;
  }
  return `{${text.slice(1)}}`;
}

/**
 * Returns a statement named by a hash of its text, the same in every process and version. Through a pooler that shares
 * server connections between processes, a statement may then be missing, but never be run in place of another.
 */
export function named(prefix: string, text: string): Statement & { readonly name: string } {
  return { text, name: `${prefix}-${createHash('sha256').update(text).digest('hex').slice(0, 16)}` };
}

/** How many uses earn a statement a name, and how many names there may be. */
const usesBeforeName = 5;
const maxNames = 100;
const maxCounted = 1000;

/** Names the most frequent statements: the first ones to reach a number of uses. */
export class StatementNames {
  private readonly prefix: string;
  private readonly names = new Map<string, string>();
  private readonly uses = new Map<string, number>();

  constructor(prefix: string) {
    this.prefix = prefix;
  }

  /** Returns the name of a text that has one or has just earned it; otherwise undefined. */
  nameOf(text: string): string | undefined {
    const name = this.names.get(text);
    if (name !== undefined || this.names.size >= maxNames) return name;
    const uses = (this.uses.get(text) ?? 0) + 1;
    if (uses < usesBeforeName) {
      if (this.uses.size >= maxCounted) this.uses.clear();
      this.uses.set(text, uses);
      return undefined;
    }
    this.uses.delete(text);
    const given = named(this.prefix, text);
    this.names.set(text, given.name);
    return given.name;
  }
}

interface Asked {
  readonly statement: Statement;
  readonly resolve: (result: Result<pg.QueryResultRow>) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Collects statements issued before an await, or while others are in flight, and sends each group as a batch, one at a
 * time.
 */
export class StatementQueue {
  private readonly send: (statements: readonly Statement[]) => Promise<readonly Result<pg.QueryResultRow>[]>;
  private asked: Asked[] = [];
  private isSending = false;
  private hasEnded = false;
  /** What to tell others when the statements have been committed. */
  readonly hints: Hint[] = [];

  constructor(send: (statements: readonly Statement[]) => Promise<readonly Result<pg.QueryResultRow>[]>) {
    this.send = send;
  }

  async query<Row extends pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Result<Row>> {
    if (this.hasEnded) throw new Error('a statement was issued after its transaction had ended');
    try {
      return (await new Promise<Result<pg.QueryResultRow>>((resolve, reject) => {
        this.asked.push({ statement: { text, ...(values && { values }) }, resolve, reject });
        if (!this.isSending) void this.sendAsked();
      })) as Result<Row>;
    } catch (error) {
      // The stack of the caller is useful; that of the response handler is not.
      if (error instanceof Error) Error.captureStackTrace(error);
      throw error;
    }
  }

  hint(channel: string, payloads: readonly string[] = ['']): void {
    for (const payload of payloads) this.hints.push([channel, payload]);
  }

  private async sendAsked(): Promise<void> {
    this.isSending = true;
    await Promise.resolve();
    while (this.asked.length > 0) {
      const group = this.asked.splice(0);
      try {
        const results = await this.send(group.map(({ statement }) => statement));
        for (const [index, { resolve }] of group.entries()) resolve(results[index]!);
      } catch (error) {
        for (const { reject } of group) reject(error);
      }
    }
    this.isSending = false;
  }

  /** Rejects everything from now on: the connection is about to be released. */
  end(): void {
    this.hasEnded = true;
    for (const { reject } of this.asked.splice(0)) {
      reject(new Error('a transaction ended before its last statement was sent'));
    }
  }
}

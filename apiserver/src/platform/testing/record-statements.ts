// mocha plugin that records the statements which the code sends to PostgreSQL while tests run, for the check of their plans
// (bench/src/year/plans.ts). Each process writes a file with a line for each statement into the folder KELLET_TEST_STATEMENTS.
import { appendFileSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import type { RecordedStatement } from '../database/connection/recorded-statement.ts';
import { StatementQueue } from '../database/connection/statement-batch.ts';

/** What is known of a connection. */
interface Session {
  /** Texts of prepared statements by name. */
  readonly texts: Map<string, string>;
  scope: RecordedStatement['scope'];
  isInTransaction: boolean;
}

const sourceFolder = new URL('../../', import.meta.url).href;
const isTest = (file: string): boolean => /\.test\.ts$|(^|\/)testing\//.test(file);

/** Returns the file of the code that called, or undefined if a test did. */
function callerOf(stack: string): string | undefined {
  for (const [, file] of stack.matchAll(new RegExp(`${sourceFolder}([^:]+):`, 'g'))) {
    if (!/^platform\/(database\/|testing\/record-statements)/.test(file!)) return isTest(file!) ? undefined : file;
  }
  return undefined;
}

/** The interface of pg's connection that every statement passes. */
interface Connection {
  parse: (this: Connection, statement: { name?: string; text: string }, more: boolean) => void;
  bind: (this: Connection, portal: { statement?: string }, more: boolean) => void;
  sync: (this: Connection) => void;
}

/** The interface of a queue of statements. */
interface Queue {
  query: (this: Queue, text: string, values?: unknown) => unknown;
}

function record(folder: string): void {
  mkdirSync(folder, { recursive: true });
  const file = join(folder, `${process.pid}.jsonl`);
  const callers = new Map<string, string>();
  const recorded = new Set<string>();
  const sessions = new WeakMap<object, Session>();
  const sessionOf = (connection: object): Session => {
    const session = sessions.get(connection) ?? { texts: new Map(), scope: 'system', isInTransaction: false };
    sessions.set(connection, session);
    return session;
  };
  const run = (session: Session, text: string) => {
    if (/^begin\b/i.test(text)) session.isInTransaction = true;
    else if (/^(commit|rollback)\b/i.test(text)) [session.isInTransaction, session.scope] = [false, 'system'];
    else if (text.includes(`set_config('role', 'kellet_tenant'`)) session.scope = 'tenant';
    const caller = callers.get(text);
    if (caller === undefined || !/^\s*(select|with|insert|update|delete)\b/i.test(text)) return;
    const line = JSON.stringify({ scope: session.scope, text, file: caller } satisfies RecordedStatement);
    if (recorded.has(line)) return;
    recorded.add(line);
    appendFileSync(file, `${line}\n`);
  };
  const queue = StatementQueue.prototype as unknown as Queue;
  const { query } = queue;
  queue.query = function (text, values) {
    if (!callers.has(text)) {
      const caller = callerOf(new Error().stack ?? '');
      if (caller !== undefined) callers.set(text, caller);
    }
    return query.call(this, text, values);
  };
  const connection = pg.Connection.prototype as unknown as Connection;
  const { parse, bind, sync } = connection;
  connection.parse = function (statement, more) {
    sessionOf(this).texts.set(statement.name ?? '', statement.text);
    parse.call(this, statement, more);
  };
  connection.bind = function (portal, more) {
    const session = sessionOf(this);
    run(session, session.texts.get(portal.statement ?? '') ?? '');
    bind.call(this, portal, more);
  };
  connection.sync = function () {
    const session = sessionOf(this);
    // Outside of a transaction a message is one.
    if (!session.isInTransaction) session.scope = 'system';
    sync.call(this);
  };
}

const { KELLET_TEST_STATEMENTS: folder } = process.env;
if (folder) record(folder);

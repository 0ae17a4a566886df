// Work that one process at a time does, for longer than a transaction.
import { sleep } from '../clock.ts';
import { cutOff } from './connection/connection.ts';
import { sendBatch } from './connection/statement-batch.ts';
import type { Database } from './database.ts';

const lockMilliseconds = 5000;
const retryMilliseconds = 1000;

/** A lock (advisory-locks.ts), and the name of the connection that holds it. */
export interface SessionLock {
  readonly key: number;
  readonly name: string;
}

/** Runs work while this process holds a lock. Returns false if another one has it. */
export async function alone(database: Database, lock: SessionLock, work: () => Promise<void>): Promise<boolean> {
  return (await tryAlone(database, lock, work, false)) !== undefined;
}

/** How to wait for a lock. */
export interface Wait {
  /** Called about once a second while another process has the lock; may throw to give up. */
  readonly waiting: () => void;
  /** Ends the wait, which then throws the signal's reason. */
  readonly signal?: AbortSignal;
  /** Whether to throw if the lock was lost before the work ended, so that another process may have had it. */
  readonly mustHold?: boolean;
}

/** Runs work once this process holds a lock, and returns its result. */
export async function whenAlone<T>(
  database: Database,
  lock: SessionLock,
  work: () => Promise<T>,
  { waiting, signal, mustHold = false }: Wait,
): Promise<T> {
  for (;;) {
    const done = await tryAlone(database, lock, work, mustHold);
    if (done) return done.result;
    waiting();
    await sleep(retryMilliseconds, signal);
    signal?.throwIfAborted();
  }
}

/** Runs work while this process holds a lock. Returns undefined if another one has it. */
async function tryAlone<T>(
  database: Database,
  { key, name }: SessionLock,
  work: () => Promise<T>,
  mustHold: boolean,
): Promise<{ readonly result: T } | undefined> {
  const client = await database.dedicated(name, lockMilliseconds);
  const send = async (text: string): Promise<boolean> => {
    const [sent] = await sendBatch(client, [{ text: `SELECT ${text}($1) AS done`, values: [key] }], lockMilliseconds);
    return sent!.rows[0]!['done'] === true;
  };
  try {
    if (!(await send('pg_try_advisory_lock'))) return undefined;
    try {
      const result = await work();
      if (mustHold && !(await send('pg_advisory_unlock'))) throw new Error(`the lock of ${name} was lost`);
      return { result };
    } finally {
      // The end of a session may take the server a moment; a lost one has released its locks.
      if (!mustHold) await send('pg_advisory_unlock').catch(() => undefined);
    }
  } finally {
    cutOff(client);
  }
}

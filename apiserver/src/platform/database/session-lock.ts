// Work that one process at a time does, for longer than a transaction.
import { cutOff } from './connection.ts';
import type { Database } from './database.ts';
import { sendBatch } from './statement-batch.ts';

const lockMilliseconds = 5000;

/** Runs work while this process holds a lock (advisory-locks.ts). Returns false if another one has it. */
export async function alone(
  database: Database,
  { key, name }: { readonly key: number; readonly name: string },
  work: () => Promise<void>,
): Promise<boolean> {
  const client = await database.dedicated(name, lockMilliseconds);
  try {
    const take = { text: 'SELECT pg_try_advisory_lock($1) AS locked', values: [key] };
    const [taken] = await sendBatch(client, [take], lockMilliseconds);
    if (taken!.rows[0]!['locked'] !== true) return false;
    try {
      await work();
    } finally {
      // The end of a session may take the server a moment; a lost one has released its locks.
      const release = { text: 'SELECT pg_advisory_unlock($1)', values: [key] };
      await sendBatch(client, [release], lockMilliseconds).catch(() => undefined);
    }
    return true;
  } finally {
    cutOff(client);
  }
}

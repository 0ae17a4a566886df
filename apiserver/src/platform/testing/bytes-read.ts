// For tests of what reads take out of the database.
import type { Database, Transaction } from '../database/database.ts';

/** A database whose reads are counted. */
interface CountedDatabase {
  readonly database: Database;
  /** Returns the bytes of all rows so far, as JSON. */
  readonly bytes: () => number;
  /** Returns those of the statement that has returned most. */
  readonly greatest: () => number;
}

/** Returns the database, and counts what transactions have returned from it. */
export function countBytesRead(database: Database): CountedDatabase {
  let bytes = 0;
  let greatest = 0;
  const count = (tx: Transaction): Transaction => ({
    hint: (...args) => tx.hint(...args),
    query: async <Row extends Record<string, unknown>>(text: string, values?: readonly unknown[]) => {
      const result = await tx.query<Row>(text, values);
      const { length } = JSON.stringify(result.rows, (_, value: unknown) =>
        typeof value === 'bigint' ? String(value) : value,
      );
      bytes += length;
      greatest = Math.max(greatest, length);
      return result;
    },
  });
  const counted = Object.assign(Object.create(database) as Database, {
    read: <T>(tenantId: string, work: (tx: Transaction) => Promise<T>) =>
      database.read(tenantId, (tx) => work(count(tx))),
    tenant: <T>(tenantId: string, work: (tx: Transaction) => Promise<T>) =>
      database.tenant(tenantId, (tx) => work(count(tx))),
    system: <T>(work: (tx: Transaction) => Promise<T>) => database.system((tx) => work(count(tx))),
  });
  return { database: counted, bytes: () => bytes, greatest: () => greatest };
}

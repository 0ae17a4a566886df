// For tests of what reads take out of the database.
import type { Database, Transaction } from '../database/database.ts';

/** Returns the database, and the bytes of the rows that transactions of tenants have returned from it, as JSON. */
export function countBytesRead(database: Database): { readonly database: Database; readonly bytes: () => number } {
  let bytes = 0;
  const count = (tx: Transaction): Transaction => ({
    hint: (...args) => tx.hint(...args),
    query: async <Row extends Record<string, unknown>>(text: string, values?: readonly unknown[]) => {
      const result = await tx.query<Row>(text, values);
      bytes += JSON.stringify(result.rows).length;
      return result;
    },
  });
  const counted = Object.assign(Object.create(database) as Database, {
    read: <T>(tenantId: string, work: (tx: Transaction) => Promise<T>) =>
      database.read(tenantId, (tx) => work(count(tx))),
    tenant: <T>(tenantId: string, work: (tx: Transaction) => Promise<T>) =>
      database.tenant(tenantId, (tx) => work(count(tx))),
  });
  return { database: counted, bytes: () => bytes };
}

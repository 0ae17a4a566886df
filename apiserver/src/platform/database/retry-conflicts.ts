// Retries transactions that PostgreSQL aborted because of another one.
import { setTimeout as sleep } from 'node:timers/promises';
import { sqlState } from '../errors.ts';
import { isStale } from './connection/statement-batch.ts';
import type { Database, Transaction } from './database.ts';

/**
 * Serialization failure, deadlock, and a foreign key whose row was deleted after the transaction had looked for it: the
 * next attempt sees that it is gone. None had an effect.
 */
const conflicts = new Set(['40001', '40P01', '23503']);

const attempts = 5;

/**
 * Runs a transaction and retries it if PostgreSQL aborts it because of a concurrent one, or because one of its prepared
 * statements has become stale (Database.frequent). `transaction` must have no
 * effects outside the database. After five attempts, throws the last error.
 */
export async function retryConflicts<T>(transaction: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await transaction();
    } catch (error) {
      if (attempt === attempts || !(conflicts.has(sqlState(error) ?? '') || isStale(error))) throw error;
      // Random delay, so that transactions that collided do not retry at the same moment.
      await sleep(Math.random() * 10 * 2 ** attempt);
    }
  }
}

/** Returns a function that runs a transaction of a tenant with these retries. */
export const retriedTransactions =
  (database: Pick<Database, 'tenant'>) =>
  <T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> =>
    retryConflicts(() => database.tenant(tenantId, work));

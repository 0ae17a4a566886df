// Transactions that PostgreSQL has ended in favour of another one are run again.
import { setTimeout as sleep } from 'node:timers/promises';
import { sqlState } from '../errors.ts';

/** Serialization failure and deadlock: nothing is wrong with the transaction, and nothing of it has happened. */
const conflicts = new Set(['40001', '40P01']);

const attempts = 5;

/**
 * Runs a transaction, and again when PostgreSQL ended it over a deadlock or a serialization failure. `transaction` must have no
 * effect outside of the database. Throws what the last of five attempts threw.
 */
export async function retryConflicts<T>(transaction: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await transaction();
    } catch (error) {
      if (attempt === attempts || !conflicts.has(sqlState(error) ?? '')) throw error;
      // Those that collided must not come back at the same moment.
      await sleep(Math.random() * 10 * 2 ** attempt);
    }
  }
}

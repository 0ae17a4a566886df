// Retries transactions that PostgreSQL aborted in favour of another one.
import { setTimeout as sleep } from 'node:timers/promises';
import { sqlState } from '../errors.ts';

/** Serialization failure and deadlock: the transaction was valid and had no effect. */
const conflicts = new Set(['40001', '40P01']);

const attempts = 5;

/**
 * Runs a transaction and retries it if PostgreSQL aborts it with a deadlock or serialization failure. `transaction`
 * must have no effects outside the database. After five attempts, throws the last error.
 */
export async function retryConflicts<T>(transaction: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await transaction();
    } catch (error) {
      if (attempt === attempts || !conflicts.has(sqlState(error) ?? '')) throw error;
      // Random delay, so that transactions that collided do not retry at the same moment.
      await sleep(Math.random() * 10 * 2 ** attempt);
    }
  }
}

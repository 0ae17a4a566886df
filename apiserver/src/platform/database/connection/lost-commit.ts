// Finds out what became of a transaction whose COMMIT got no response.
import { setTimeout as sleep } from 'node:timers/promises';
import { KelletError, sqlState, unavailable } from '../../errors.ts';
import { named, type Result, type Statement } from './statement-batch.ts';

/** Runs a query in a separate transaction, on another connection. */
type Ask = (text: string, values: readonly unknown[]) => Promise<Result<Record<string, unknown>>>;

// The id by which the server knows a transaction that has written something, even after its connection is lost.
export const transactionId = named('transaction', 'SELECT pg_current_xact_id_if_assigned()::text AS id');
// Needs no privileges: the session belongs to the same user.
const endIdleTransaction = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE backend_xid = $1::text::xid8::xid AND state = 'idle in transaction' AND usename = current_user`;
// Commits something, however small, so that it waits for the synchronous replica, which has everything before it then.
// The lost connection may have ended the wait of the transaction itself.
const replicate = `SELECT pg_logical_emit_message(true, 'kellet', '')`;
const reads = /^\s*(select|show|set)\b/i;
/** Reports whether a statement may write something. */
export const mayWrite = ({ text }: Statement): boolean => !reads.test(text);

/**
 * Returns if a transaction whose COMMIT got no response was committed, and has reached the synchronous replica if there
 * is one. Throws UNAVAILABLE if it was not, and
 * DEADLINE_EXCEEDED if the database does not come back in time to tell.
 */
export async function confirmCommit(ask: Ask, id: string, lost: Error, milliseconds: number): Promise<void> {
  const deadline = performance.now() + milliseconds;
  for (let delay = 25; performance.now() < deadline; delay = Math.min(2 * delay, 1000)) {
    const status = await statusOf(ask, id);
    if (status === 'committed') return;
    if (status === 'aborted') throw unavailable('the database is unavailable', lost);
    await sleep(delay, undefined, { ref: false });
  }
  const message = 'the database did not confirm the change in time: it may have been made';
  throw new KelletError('DEADLINE_EXCEEDED', message, { cause: lost });
}

/**
 * Returns whether a transaction was committed; undefined while it is in progress or the database is away. Ends the
 * session of a transaction that is still waiting for its COMMIT, so that it cannot be committed later.
 */
async function statusOf(ask: Ask, id: string): Promise<'committed' | 'aborted' | undefined> {
  try {
    const { rows } = await ask('SELECT pg_xact_status($1::text::xid8) AS status', [id]);
    const status = rows[0]!['status'];
    if (status === 'aborted') return 'aborted';
    if (status === 'committed') {
      await ask(replicate, []);
      return 'committed';
    }
    await ask(endIdleTransaction, [id]);
    return undefined;
  } catch (error) {
    // A server that was promoted without having received the transaction has not given out its id yet.
    if (sqlState(error) === '22023') return 'aborted';
    if (error instanceof KelletError) return undefined;
    throw error;
  }
}

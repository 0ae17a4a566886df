// Notices that a commit was not confirmed by the synchronous replica.
//
// With synchronous replication a COMMIT returns once a replica has it. If the wait is cut short because somebody cancels
// the request, PostgreSQL reports success and only adds a warning: the transaction is on the primary alone and
// lost with it. Such a response must not be passed on as success.
import type pg from 'pg';
import { KelletError } from '../../errors.ts';

const watched = new WeakSet<pg.Connection>();
const unconfirmed = new WeakSet<pg.Connection>();

/** The function of PostgreSQL that reports it; the message itself is in the server's language. */
const reporter = 'SyncRepWaitForLSN';

/** Watches a connection for the warning. May be called for each statement. */
export function watchReplication(connection: pg.Connection): void {
  if (watched.has(connection)) return;
  watched.add(connection);
  connection.on('notice', ({ routine }: { routine?: string }) => {
    if (routine === reporter) unconfirmed.add(connection);
  });
}

/** Returns an error if the response that has just ended came with the warning, and forgets the warning. */
export function replicationFailure(connection: pg.Connection): KelletError | undefined {
  if (!unconfirmed.delete(connection)) return undefined;
  return new KelletError('DEADLINE_EXCEEDED', 'the replica did not confirm the change in time: it may have been made');
}

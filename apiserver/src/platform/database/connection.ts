// A connection to PostgreSQL, made so that neither side waits for ever for the other one when it has vanished.
import pg from 'pg';
import { sendBatch, type Statement } from './statement-batch.ts';

/** How long connecting may take, and then setting up the session. */
const connectMilliseconds = 5000;

/** How long a connection is quiet before the operating system asks the server whether it is there. */
const keepAliveMilliseconds = 10_000;

/**
 * What holds for every session, as far as the server knows the setting: it notices a client that has vanished, also while a
 * statement of it runs.
 */
const sessionSettings = {
  tcp_keepalives_idle: '10',
  tcp_keepalives_interval: '5',
  tcp_keepalives_count: '3',
  tcp_user_timeout: '25000',
  client_connection_check_interval: '2000',
};

/** What a client of pg needs to connect. */
export const connectionOptions = (url: string, name: string): pg.ClientConfig => ({
  connectionString: url,
  connectionTimeoutMillis: connectMilliseconds,
  application_name: name,
  keepAlive: true,
  keepAliveInitialDelayMillis: keepAliveMilliseconds,
});

/** Sets what holds for a session until its end. Rejects when the server does not answer. */
export async function prepareSession(client: pg.ClientBase, statementMilliseconds: number): Promise<void> {
  const settings = { ...sessionSettings, statement_timeout: String(statementMilliseconds) };
  const wanted: Statement = {
    text: `SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS wanted (name, value)
      WHERE current_setting(name, true) IS NOT NULL`,
    values: [Object.keys(settings), Object.values(settings)],
  };
  try {
    await sendBatch(client, [wanted], connectMilliseconds);
  } catch (error) {
    // A platform without one of them refuses it; the client's own bounds hold.
    if (!(error instanceof pg.DatabaseError)) throw error;
  }
}

/** Ends a connection without a word to a server that may be gone. What waits for an answer on it is rejected. */
export function cutOff(client: pg.Client): void {
  void client.end().catch(() => undefined);
  client.connection.stream.destroy();
}

// Opens PostgreSQL connections configured so that neither side waits forever for a peer that has vanished.
import pg from 'pg';
import { sendBatch, type Statement } from './statement-batch.ts';

/** Timeout for connecting, and again for setting up the session. */
export const connectMilliseconds = 5000;

/** How long a connection is idle before the operating system sends keepalive probes. */
const keepAliveMilliseconds = 10_000;

/**
 * Settings of every session, as far as the server supports them: it notices a client that has vanished, also while one
 * of its statements runs.
 */
const sessionSettings = {
  tcp_keepalives_idle: '10',
  tcp_keepalives_interval: '5',
  tcp_keepalives_count: '3',
  tcp_user_timeout: '25000',
  client_connection_check_interval: '2000',
};

/** Returns the options for a pg client. */
export const connectionOptions = (url: string, name: string): pg.ClientConfig => ({
  connectionString: url,
  connectionTimeoutMillis: connectMilliseconds,
  application_name: name,
  keepAlive: true,
  keepAliveInitialDelayMillis: keepAliveMilliseconds,
});

/** Applies the session settings. Rejects if the server does not respond. */
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
    // A platform that lacks one of them reports an error; the client-side timeouts still apply.
    if (!(error instanceof pg.DatabaseError)) throw error;
  }
}

/** Closes a connection without notifying a server that may be gone. Pending queries on it reject. */
export function cutOff(client: pg.Client): void {
  void client.end().catch(() => undefined);
  client.connection.stream.destroy();
}

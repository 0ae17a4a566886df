// A writer's identity: a row with epoch and flush number, the session advisory lock that says it lives, and the connection
// that holds the lock and carries its flushes in order.
import type pg from 'pg';
import type { Database } from '../platform/database.ts';
import { newId } from '../platform/ids.ts';
import { closeWriter } from './takeover.ts';
import { sendEncoded } from './wire-query.ts';

/** A living writer. Its flushes are numbered from 1. */
export class WriterSession {
  readonly writerId: string;
  readonly epoch = 0;
  private readonly client: pg.Client;
  private ended = false;

  private constructor(writerId: string, client: pg.Client) {
    this.writerId = writerId;
    this.client = client;
    client.once('end', () => (this.ended = true));
  }

  /** Opens a new identity. Rejects when the database is away. */
  static async open(database: Database): Promise<WriterSession> {
    const writerId = newId();
    const client = await database.dedicated('telemetry-writer');
    try {
      // A writer whose machine has vanished is noticed, and its lock let go, within half a minute.
      await client.query('SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3');
      // The lock comes first: a row without one would be taken over.
      await client.query('SELECT pg_advisory_lock(telemetry_writer_lock($1))', [writerId]);
      await client.query('INSERT INTO telemetry_writers (writer_id) VALUES ($1)', [writerId]);
      await client.query('SET ROLE kellet_ingest');
    } catch (error) {
      await client.end().catch(() => undefined);
      throw error;
    }
    return new WriterSession(writerId, client);
  }

  /** Whether the connection is gone. */
  get lost(): boolean {
    return this.ended;
  }

  /** Sends a flush behind those already sent. */
  send(bytes: Buffer): Promise<void> {
    return sendEncoded(this.client, bytes);
  }

  /** Gives the connection up without waiting: flushes that were not answered reject. */
  abandon(): void {
    this.ended = true;
    (this.client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
  }

  /**
   * Ends the identity: what it sent is either committed by then or never will be. Answers the last committed flush number.
   * Rejects while the database is away; may be repeated.
   */
  async close(database: Database): Promise<bigint> {
    if (this.ended) {
      // The server may not have noticed yet, and would go on waiting for the rest of a flush.
      await database.system((tx) =>
        tx.query(
          `SELECT pg_terminate_backend(pid) FROM pg_locks
           WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND ((classid::int8 << 32) | objid::int8) = telemetry_writer_lock($1) AND objsubid = 1`,
          [this.writerId],
        ),
      );
    }
    const committed = await database.system((tx) => closeWriter(tx, this.writerId));
    if (!this.ended) await this.client.end().catch(() => undefined);
    return committed;
  }
}

// A writer's identity: a row with epoch and flush number, the session advisory lock that marks it alive, and the
// connection that holds the lock and carries its flushes in order.
import type pg from 'pg';
import type { Clock } from '../../platform/clock.ts';
import { writerChannel } from '../../platform/database/channels.ts';
import { cutOff } from '../../platform/database/connection/connection.ts';
import { sendBatch } from '../../platform/database/connection/statement-batch.ts';
import type { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { WireBuffer } from './wire-buffer.ts';
import { sendEncoded } from './wire-query.ts';
import { closeWriter, fenceWriter } from './writer-closing.ts';

/** Statement timeout of a flush. */
const flushStatementMilliseconds = 10_000;

/** Timeout for the first statements of a session. */
const openMilliseconds = 5000;

/** A session quiet for this long is probed, and has the same time to respond. */
const quietMilliseconds = 3000;

/** A live writer. Its flushes are numbered from 1. */
export class WriterSession {
  readonly writerId: string;
  readonly epoch = 0;
  private readonly client: pg.Client;
  private ended = false;
  /** When the server last responded and since when a response is outstanding, in milliseconds. */
  private heardAt = 0;
  private askedAt: number | undefined;
  /** Milliseconds by which the clock of this process is ahead of the database's. */
  readonly ahead: number;

  private constructor(writerId: string, client: pg.Client, ahead: number) {
    this.writerId = writerId;
    this.client = client;
    this.ahead = ahead;
    client.once('end', () => (this.ended = true));
  }

  /**
   * Opens a new identity of a process that other processes reach at `address`. Rejects if the database is unavailable.
   */
  static async open(database: Database, clock: Clock, address: string): Promise<WriterSession> {
    const writerId = newId();
    const client = await database.dedicated('telemetry-writer', flushStatementMilliseconds);
    const ask = (text: string, values: string[] = []) => sendBatch(client, [{ text, values }], openMilliseconds);
    try {
      // The lock comes first: a row without one would be taken over.
      await ask('SELECT pg_advisory_lock(telemetry_writer_lock($1))', [writerId]);
      await ask('INSERT INTO telemetry_writers (writer_id) VALUES ($1)', [writerId]);
      await ask('INSERT INTO telemetry_tails (writer_id, address) VALUES ($1, $2)', [writerId, address]);
      await ask(`NOTIFY ${writerChannel}`);
      const [time] = await ask('SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS now');
      await ask('SET ROLE kellet_ingest');
      return new WriterSession(writerId, client, Math.round(clock.now() - (time!.rows[0]!['now'] as number)));
    } catch (error) {
      cutOff(client);
      throw error;
    }
  }

  /** Whether the connection is lost. */
  get lost(): boolean {
    return this.ended;
  }

  /** Sends a flush after those already sent. */
  send(flush: WireBuffer): Promise<void> {
    return sendEncoded(this.client, flush);
  }

  /**
   * Probes a quiet connection and abandons it if it does not respond, because a network that drops packets reports no
   * error. To be called periodically with the current time in milliseconds.
   */
  check(now: number): void {
    if (this.ended) return;
    if (this.askedAt !== undefined && now - this.askedAt > quietMilliseconds) return this.abandon();
    if (this.askedAt !== undefined || now - this.heardAt < quietMilliseconds) return;
    this.askedAt = now;
    const question = new WireBuffer(64);
    question.query('SELECT 1');
    sendEncoded(this.client, question).then(
      () => this.heard(now),
      () => undefined,
    );
  }

  private heard(at: number): void {
    this.heardAt = at;
    this.askedAt = undefined;
  }

  /** Closes the connection without waiting; pending flushes reject. */
  abandon(): void {
    this.ended = true;
    cutOff(this.client);
  }

  /**
   * Ends the identity: by then everything it sent is either committed or never will be. Returns the last committed
   * flush number. Its open batches are sealed by whoever takes it over. Rejects while the database is unavailable; may be
   * retried.
   */
  async end(database: Database): Promise<bigint> {
    if (this.ended) {
      // The server may not have noticed yet and would keep waiting for the rest of a flush.
      await database.system((tx) =>
        tx.query(
          `SELECT pg_terminate_backend(pid) FROM pg_locks
           WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND ((classid::int8 << 32) | objid::int8) = telemetry_writer_lock($1) AND objsubid = 1`,
          [this.writerId],
        ),
      );
    }
    const committed = await database.system((tx) => fenceWriter(tx, this.writerId));
    if (!this.ended) cutOff(this.client);
    return committed;
  }

  /** Closes the writer, whose batches are all sealed. Rejects like `end`. */
  async close(database: Database): Promise<void> {
    await database.maintenance((tx) => closeWriter(tx, this.writerId));
    if (!this.ended) cutOff(this.client);
  }
}

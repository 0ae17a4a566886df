// A writer's identity: a row with epoch and flush number, the session advisory lock that says it lives, and the connection
// that holds the lock and carries its flushes in order.
import type pg from 'pg';
import { cutOff } from '../../platform/database/connection.ts';
import type { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { sendBatch } from '../../platform/database/statement-batch.ts';
import { closeWriter } from './takeover.ts';
import { WireBuffer } from './wire-buffer.ts';
import { sendEncoded } from './wire-query.ts';

/** The longest a statement of a flush may run. */
const flushStatementMilliseconds = 10_000;

/** How long the first statements of a session may wait for their answer. */
const openMilliseconds = 5000;

/** A session that has been quiet for so long is asked whether it is there, and has as long to answer. */
const quietMilliseconds = 3000;

/** A living writer. Its flushes are numbered from 1. */
export class WriterSession {
  readonly writerId: string;
  readonly epoch = 0;
  private readonly client: pg.Client;
  private ended = false;
  /** When the server was last known to be there, and since when it has owed an answer; milliseconds. */
  private heardAt = 0;
  private askedAt: number | undefined;

  private constructor(writerId: string, client: pg.Client) {
    this.writerId = writerId;
    this.client = client;
    client.once('end', () => (this.ended = true));
  }

  /** Opens a new identity. Rejects when the database is away. */
  static async open(database: Database): Promise<WriterSession> {
    const writerId = newId();
    const client = await database.dedicated('telemetry-writer', flushStatementMilliseconds);
    const ask = (text: string, values: string[] = []) => sendBatch(client, [{ text, values }], openMilliseconds);
    try {
      // The lock comes first: a row without one would be taken over.
      await ask('SELECT pg_advisory_lock(telemetry_writer_lock($1))', [writerId]);
      await ask('INSERT INTO telemetry_writers (writer_id) VALUES ($1)', [writerId]);
      await ask('SET ROLE kellet_ingest');
    } catch (error) {
      cutOff(client);
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

  /**
   * Finds out whether a quiet connection still lives, and gives it up when it does not: a network that swallows packets tells
   * nobody. To be called every so often with the present time in milliseconds.
   */
  check(now: number): void {
    if (this.ended) return;
    if (this.askedAt !== undefined && now - this.askedAt > quietMilliseconds) return this.abandon();
    if (this.askedAt !== undefined || now - this.heardAt < quietMilliseconds) return;
    this.askedAt = now;
    const question = new WireBuffer(64);
    question.query('SELECT 1');
    sendEncoded(this.client, question.bytes()).then(
      () => this.heard(now),
      () => undefined,
    );
  }

  private heard(at: number): void {
    this.heardAt = at;
    this.askedAt = undefined;
  }

  /** Gives the connection up without waiting: flushes that were not answered reject. */
  abandon(): void {
    this.ended = true;
    cutOff(this.client);
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
    if (!this.ended) cutOff(this.client);
    return committed;
  }
}

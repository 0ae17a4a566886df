// Sends encoded messages over a pg client without waiting for earlier responses. (pg's own pipeline mode accepts no
// custom queries.)
import type pg from 'pg';
import { replicationFailure, watchReplication } from '../../platform/database/connection/replication-wait.ts';
import type { WireBuffer } from './wire-buffer.ts';

/**
 * A Submittable of pg: one Query message with the data of its COPY statements, already sent. pg's queue only dispatches
 * the server's responses, which arrive in message order, to the queries in that order.
 */
class WireQuery {
  private readonly connection: pg.Connection;
  private readonly settle: (error?: Error) => void;

  constructor(connection: pg.Connection, settle: (error?: Error) => void) {
    this.connection = connection;
    this.settle = settle;
  }

  submit(): null {
    return null;
  }

  // Called for a server error, which ReadyForQuery follows, or for a lost connection, which nothing follows.
  handleError(error: Error): void {
    this.settle(error);
  }

  handleReadyForQuery(): void {
    this.settle(replicationFailure(this.connection));
  }

  // Statement results are ignored, and COPY data has been sent with the statement.
  handleRowDescription(): void {}
  handleDataRow(): void {}
  handleCommandComplete(): void {}
  handleCopyInResponse(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}
}

/**
 * Resolves when the server has committed; rejects with the server's or the connection's error, and with
 * DEADLINE_EXCEEDED if it has committed but no synchronous replica has confirmed it. The client must not be used for
 * anything else while messages are in flight. Releases the bytes when they have been sent.
 */
export function sendEncoded(client: pg.Client, wire: WireBuffer): Promise<void> {
  const { connection } = client;
  const { stream } = connection;
  watchReplication(connection);
  if (!stream.writable) return Promise.reject(new Error('Connection terminated'));
  return new Promise((resolve, reject) => {
    const query = new WireQuery(connection, (error) => (error ? reject(error) : resolve()));
    client.query(query as unknown as pg.Submittable);
    stream.write(wire.bytes(), (error) => {
      // After an error the bytes may still be referred to.
      if (!error) wire.release();
    });
  });
}

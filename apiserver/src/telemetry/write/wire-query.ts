// Sends encoded messages over a pg client, the next before the answer to the last has come. (pg's own pipeline mode takes no
// queries of other classes.)
import type pg from 'pg';

interface Connection {
  readonly stream: { write(data: Buffer): boolean; readonly writable: boolean };
}

/**
 * A Submittable of pg: one Query message with the data of its COPY statements, already sent. What pg's queue still does is
 * to hand the server's answers, which come in the order of the messages, to the queries in that order.
 */
class WireQuery {
  private readonly settle: (error?: Error) => void;

  constructor(settle: (error?: Error) => void) {
    this.settle = settle;
  }

  submit(): null {
    return null;
  }

  // An error of the server, after which ReadyForQuery follows, or the loss of the connection, after which nothing does.
  handleError(error: Error): void {
    this.settle(error);
  }

  handleReadyForQuery(): void {
    this.settle();
  }

  // Results of the statements mean nothing here, and the data of a COPY has been sent with the statement.
  handleRowDescription(): void {}
  handleDataRow(): void {}
  handleCommandComplete(): void {}
  handleCopyInResponse(): void {}
  handleEmptyQuery(): void {}
  handlePortalSuspended(): void {}
}

/**
 * Resolves when the server has committed; rejects with its error, or with the connection's. While messages are under way the
 * client must not be used for anything else.
 */
export function sendEncoded(client: pg.Client, bytes: Buffer): Promise<void> {
  const { stream } = (client as unknown as { connection: Connection }).connection;
  if (!stream.writable) return Promise.reject(new Error('Connection terminated'));
  return new Promise((resolve, reject) => {
    const query = new WireQuery((error) => (error ? reject(error) : resolve()));
    client.query(query as unknown as pg.Submittable);
    stream.write(bytes);
  });
}

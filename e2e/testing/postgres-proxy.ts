// A proxy in front of PostgreSQL that injects network and server faults at a chosen statement of a transaction.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/**
 * Faults of a statement and its connection: `cut` resets it before the statement arrives; `swallowed` drops everything
 * without closing the connection, like a firewall that has dropped its state; `unanswered` delivers the statement and
 * resets the connection instead of returning the result; `unheard` delivers the statement and returns nothing.
 */
export type StatementFault = 'cut' | 'swallowed' | 'unanswered' | 'unheard';

/** Where a fault occurs. */
export interface FaultPoint {
  /** Text of a statement. */
  readonly statement: string;
  /** The statement itself, or the COMMIT of the transaction that it is part of. */
  readonly at: 'statement' | 'commit';
  readonly fault?: StatementFault | undefined;
  /** Called with 'sent' when the statement arrives, and with 'answered' once its result has arrived. */
  readonly on?: (moment: 'sent' | 'answered') => void;
}

interface Pair {
  readonly near: Socket;
  readonly far: Socket;
  /** Set when the fault's statement has arrived: its COMMIT is next. */
  isMarked: boolean;
  toFar: 'through' | 'nowhere';
  toNear: 'through' | 'nowhere' | 'reset';
  answered: (() => void) | undefined;
}

/** A proxy in front of PostgreSQL that parses only as much of the protocol as is needed to find a statement. */
export class PostgresProxy {
  /** The next fault. It is injected once. */
  point: FaultPoint | undefined;
  private readonly server: Server;
  private readonly pairs = new Set<Pair>();
  private isAway = false;

  private constructor(target: { host: string; port: number }) {
    this.server = createServer((near) => {
      if (this.isAway) return void near.resetAndDestroy();
      const far = connect(target);
      const pair: Pair = { near, far, isMarked: false, toFar: 'through', toNear: 'through', answered: undefined };
      this.pairs.add(pair);
      const end = (): void => {
        near.destroy();
        // The server is not notified that the client has disconnected.
        if (pair.toFar === 'nowhere' && !far.destroyed) return;
        this.pairs.delete(pair);
        far.destroy();
      };
      near.on('data', (chunk: Buffer) => this.fromClient(pair, chunk));
      far.on('data', (chunk: Buffer) => this.fromServer(pair, chunk));
      for (const socket of [near, far]) socket.on('error', end).on('close', end);
    });
  }

  /** Listens on a free port in front of the server of this URL. */
  static async before(url: string): Promise<PostgresProxy> {
    const { hostname, port } = new URL(url);
    const proxy = new PostgresProxy({ host: hostname, port: Number(port) });
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    return proxy;
  }

  /** Returns the URL of the server through the proxy. */
  through(url: string): string {
    const changed = new URL(url);
    changed.hostname = '127.0.0.1';
    changed.port = String((this.server.address() as AddressInfo).port);
    return changed.href;
  }

  /** Resets all connections, and refuses new ones until `return`. */
  leave(): void {
    this.isAway = true;
    for (const { near, far } of this.pairs) {
      near.resetAndDestroy();
      far.resetAndDestroy();
    }
  }

  /** Accepts connections again; those that drop everything are reset. */
  return(): void {
    this.isAway = false;
    this.point = undefined;
    for (const { near, far, toFar, toNear } of this.pairs) {
      if (toFar === 'through' && toNear === 'through') continue;
      near.resetAndDestroy();
      far.resetAndDestroy();
    }
  }

  async close(): Promise<void> {
    this.leave();
    this.server.close();
    await once(this.server, 'close');
  }

  private fromClient(pair: Pair, chunk: Buffer): void {
    const { point } = this;
    // A client writes a batch of statements at once, short enough to arrive in one piece.
    if (point && chunk.includes(point.statement)) pair.isMarked = true;
    if (point && pair.isMarked && (point.at === 'statement' || chunk.includes('COMMIT\0'))) {
      this.point = undefined;
      pair.isMarked = false;
      pair.answered = () => point.on?.('answered');
      point.on?.('sent');
      if (point.fault === 'cut') {
        pair.near.resetAndDestroy();
        pair.far.resetAndDestroy();
        return;
      }
      if (point.fault === 'swallowed') Object.assign(pair, { toFar: 'nowhere', toNear: 'nowhere' });
      else if (point.fault === 'unanswered') pair.toNear = 'reset';
      else if (point.fault === 'unheard') pair.toNear = 'nowhere';
    }
    if (pair.toFar === 'through') pair.far.write(chunk);
  }

  private fromServer(pair: Pair, chunk: Buffer): void {
    if (pair.toNear === 'through') pair.near.write(chunk);
    const { answered } = pair;
    pair.answered = undefined;
    if (pair.toNear === 'reset') {
      pair.near.resetAndDestroy();
      pair.far.resetAndDestroy();
    }
    answered?.();
  }
}

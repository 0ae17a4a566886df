// A TCP proxy to a server that can cut connections or drop everything, as networks do, for tests.
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** Which bytes are dropped: those from the client, those from the server, or both. */
export type Silence = 'to server' | 'to client' | 'both';

/** The two sockets of a forwarded connection. */
interface Pair {
  readonly near: Socket;
  readonly far: Socket;
  silence: Silence | undefined;
}

function targetOf(url: string): { host: string; port: number } {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port) };
}

/** Forwards connections to a server until cut or silenced. */
export class TcpProxy {
  private readonly server: Server;
  private readonly pairs = new Set<Pair>();
  private isOpen = true;
  /** Delay in each direction. */
  delayMilliseconds = 0;
  private muted: Silence | undefined;
  private target: { host: string; port: number };

  private constructor(target: { host: string; port: number }) {
    this.target = target;
    this.server = createServer((near) => {
      if (!this.isOpen) return void near.resetAndDestroy();
      const pair: Pair = { near, far: connect(this.target), silence: undefined };
      this.pairs.add(pair);
      this.forward(pair, near, pair.far, 'to server');
      this.forward(pair, pair.far, near, 'to client');
    });
  }

  private forward(pair: Pair, from: Socket, to: Socket, direction: Silence): void {
    const isSwallowed = () => [pair.silence, this.muted].some((one) => one === 'both' || one === direction);
    // Dropped data never arrives, as with a firewall that lost its state; neither does the end of a connection.
    from.on('data', (chunk) => {
      if (isSwallowed()) return;
      if (this.delayMilliseconds === 0) to.write(chunk);
      else setTimeout(() => to.write(chunk), this.delayMilliseconds);
    });
    const end = () => {
      if (isSwallowed()) return;
      this.pairs.delete(pair);
      from.destroy();
      to.destroy();
    };
    from.on('error', end);
    from.on('close', end);
  }

  /** Listens on a free port in front of the server that the URL names. */
  static async before(url: string): Promise<TcpProxy> {
    const proxy = new TcpProxy(targetOf(url));
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    return proxy;
  }

  /** Returns the URL that leads through the proxy. */
  through(url: string): string {
    const changed = new URL(url);
    changed.hostname = '127.0.0.1';
    changed.port = String((this.server.address() as AddressInfo).port);
    return changed.href;
  }

  /** Leads new connections to another server, as a Service of Kubernetes does after a fail-over. */
  leadTo(url: string): void {
    this.target = targetOf(url);
  }

  /** Number of connections open on the client's side. */
  get connections(): number {
    return [...this.pairs].filter(({ near }) => !near.destroyed).length;
  }

  /** Resets every connection and refuses new ones. */
  cut(): void {
    this.isOpen = false;
    for (const { near, far } of this.pairs) {
      near.resetAndDestroy();
      far.resetAndDestroy();
    }
    this.pairs.clear();
  }

  /** Keeps every connection and accepts new ones, but drops all data, or that of one direction. */
  silence(silence: Silence = 'both'): void {
    this.muted = silence;
  }

  /** Drops all data on the currently open connections; new ones work. */
  silenceOpen(silence: Silence = 'both'): void {
    for (const pair of this.pairs) pair.silence = silence;
  }

  /** Forwards again; connections that were silenced are reset, because they have lost data. */
  restore(): void {
    if (this.muted) this.cut();
    this.isOpen = true;
    this.muted = undefined;
  }

  /** Forwards new connections again; those that were silenced remain so. */
  restoreNew(): void {
    this.silenceOpen(this.muted);
    this.muted = undefined;
  }

  async close(): Promise<void> {
    this.cut();
    this.server.close();
    await once(this.server, 'close');
  }
}

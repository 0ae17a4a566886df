// For tests: a TCP connection to a server that can be cut, or swallow everything, as networks do.
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

/** Forwards connections to a server until told otherwise. */
export class TcpProxy {
  private readonly server: Server;
  private readonly pairs = new Set<readonly [Socket, Socket]>();
  private isOpen = true;
  private isSilent = false;

  private constructor(target: { host: string; port: number }) {
    this.server = createServer((near) => {
      if (!this.isOpen) return void near.resetAndDestroy();
      const far = connect(target);
      const pair = [near, far] as const;
      this.pairs.add(pair);
      const end = (): void => {
        this.pairs.delete(pair);
        near.destroy();
        far.destroy();
      };
      for (const [from, to] of [pair, [far, near] as const]) {
        from.on('data', (chunk) => {
          // What is swallowed never arrives, as with a firewall that forgot the connection.
          if (!this.isSilent) to.write(chunk);
        });
        from.on('error', end);
        from.on('close', end);
      }
    });
  }

  /** Listens on a free port before the server that the URL names. */
  static async before(url: string): Promise<TcpProxy> {
    const { hostname, port } = new URL(url);
    const proxy = new TcpProxy({ host: hostname, port: Number(port) });
    proxy.server.listen(0, '127.0.0.1');
    await once(proxy.server, 'listening');
    return proxy;
  }

  /** The URL that leads through the proxy. */
  through(url: string): string {
    const changed = new URL(url);
    changed.hostname = '127.0.0.1';
    changed.port = String((this.server.address() as AddressInfo).port);
    return changed.href;
  }

  /** Resets every connection and refuses new ones. */
  cut(): void {
    this.isOpen = false;
    for (const [near, far] of this.pairs) {
      near.resetAndDestroy();
      far.resetAndDestroy();
    }
  }

  /** Keeps every connection and lets nothing through. */
  silence(): void {
    this.isSilent = true;
  }

  /** Forwards again; connections that were silent are reset, having lost what was said meanwhile. */
  restore(): void {
    if (this.isSilent) this.cut();
    this.isOpen = true;
    this.isSilent = false;
  }

  async close(): Promise<void> {
    this.cut();
    this.server.close();
    await once(this.server, 'close');
  }
}

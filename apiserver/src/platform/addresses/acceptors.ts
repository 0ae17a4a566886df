// Accepts the connections of a port, several in a turn of the event loop. Node accepts one of each listening socket in a turn, so that
// hundreds of connections that a client opens at once kept those of others waiting for as many turns, each of which may take
// milliseconds: seconds. On Linux several sockets listen on the port, among which the kernel distributes the connections.
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type ServerOpts, type Socket } from 'node:net';

/** Listening sockets of a port. */
const socketsOfPort = process.platform === 'linux' ? 16 : 1;

/** The listening sockets of one port. */
export class Acceptors {
  private readonly servers: readonly Server[];

  constructor(options: ServerOpts, accept: (socket: Socket) => void) {
    this.servers = Array.from({ length: socketsOfPort }, () => createServer(options, accept));
  }

  /** Listens and returns the port, which the system chooses if 0 is given. Rejects if it is in use. */
  async listen(port: number, host: string): Promise<number> {
    // Sockets that share a port would also share it with those of another process.
    if (port !== 0 && socketsOfPort > 1) await refuseUsed(port, host);
    let chosen = port;
    try {
      for (const server of this.servers) {
        server.listen({ port: chosen, host, reusePort: socketsOfPort > 1 });
        await once(server, 'listening');
        ({ port: chosen } = server.address() as AddressInfo);
      }
    } catch (error) {
      void this.close();
      throw error;
    }
    return chosen;
  }

  /** Stops accepting connections. Resolves when those that were accepted have ended. */
  async close(): Promise<void> {
    await Promise.all(this.servers.map((server) => new Promise<void>((resolve) => server.close(() => resolve()))));
  }
}

/** Rejects if somebody listens on the port. */
async function refuseUsed(port: number, host: string): Promise<void> {
  const probe = createServer((socket) => socket.destroy()).listen(port, host);
  await once(probe, 'listening');
  probe.close();
  await once(probe, 'close');
}

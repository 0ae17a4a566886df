// Free TCP ports on the loopback address.
import { randomInt } from 'node:crypto';
import { type AddressInfo, createServer, type Server } from 'node:net';

/** Reports whether nothing listens on this port of 127.0.0.1 or of all addresses. */
export async function isPortFree(port: number): Promise<boolean> {
  for (const host of ['127.0.0.1', '0.0.0.0']) {
    const free = await new Promise<boolean>((resolve) => {
      const server = createServer();
      server.once('error', () => resolve(false));
      server.listen({ port, host, exclusive: true }, () => server.close(() => resolve(true)));
    });
    if (!free) return false;
  }
  return true;
}

/**
 * Ports that the system gives neither to outgoing connections (from 32768 on) nor to node ports of a cluster (from
 * 30000 on). On a busy machine, one of those can be taken between the choice and the start of its server.
 */
const [lowest, highest] = [15_000, 29_999];

/** Returns a free port for each name. All stay open until the last is known, so that none is returned twice. */
export async function findFreePorts<Name extends string>(...names: readonly Name[]): Promise<Record<Name, number>> {
  const servers = await Promise.all(
    names.map(async (name): Promise<[Name, Server]> => {
      for (;;) {
        const server = await listen(lowest + randomInt(highest + 1 - lowest));
        if (server) return [name, server];
      }
    }),
  );
  const ports = servers.map(([name, server]) => [name, (server.address() as AddressInfo).port]);
  await Promise.all(servers.map(([, server]) => new Promise((resolve) => server.close(resolve))));
  return Object.fromEntries(ports) as Record<Name, number>;
}

/** Opens a port of 127.0.0.1; resolves with undefined if it is taken. */
function listen(port: number): Promise<Server | undefined> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', (error: NodeJS.ErrnoException) =>
      error.code === 'EADDRINUSE' ? resolve(undefined) : reject(error),
    );
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => resolve(server));
  });
}

// Limits the connections of a server so that no address takes all of them.
import type { Server, Socket } from 'node:net';
import { addressBlock } from './address-block.ts';

/** The oldest connections of an address among which the least used one is closed. */
const compared = 100;

/**
 * Limits the connections that a server has at once. When there are too many, the address (IPv6: /64) with the most loses one: the new
 * connection if it is its own, otherwise one of its oldest that was used least.
 */
export function limitConnections(server: Server, most: number): void {
  const sockets = new Map<string, Set<Socket>>();
  let count = 0;
  server.on('connection', (socket: Socket) => {
    const owner = addressBlock(socket.remoteAddress ?? '');
    const own = sockets.get(owner) ?? new Set();
    sockets.set(owner, own);
    own.add(socket);
    count += 1;
    socket.once('close', () => {
      own.delete(socket);
      count -= 1;
      if (own.size === 0 && sockets.get(owner) === own) sockets.delete(owner);
    });
    if (count > most) chosen(sockets, socket, own).destroy();
  });
}

/** Returns the connection to close. */
function chosen(sockets: ReadonlyMap<string, Set<Socket>>, socket: Socket, own: ReadonlySet<Socket>): Socket {
  let largest = own;
  for (const others of sockets.values()) if (others.size > largest.size) largest = others;
  // Of the same size after the new one has gone.
  if (largest.size <= own.size + 1) return socket;
  let least: Socket | undefined;
  let seen = 0;
  for (const candidate of largest) {
    if (!candidate.destroyed && (!least || candidate.bytesRead < least.bytesRead)) least = candidate;
    seen += 1;
    if (seen === compared) break;
  }
  return least ?? socket;
}

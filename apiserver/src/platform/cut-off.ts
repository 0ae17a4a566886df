// Ends connections on which so much arrives in little that Node's parser of HTTP/1.1 would be busy with it.
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { isShredded } from './pieces.ts';

/** Node's parser, which calls what is at its numbers. */
interface Parser {
  [callback: number]: unknown;
}

/** Callbacks of Node's parser for the headers, the bodies and the ends of messages. */
const parserCallbacks = [1, 2, 3, 4] as const;

/**
 * Destroys a connection without taking what else has been read of it: Node parses all of it, and would make a message or a piece of a
 * body of each few bytes.
 */
export function cutOff(socket: Socket & { readonly parser?: Parser | null }): void {
  if (socket.destroyed) return;
  const { parser } = socket;
  const callbacks = parserCallbacks.map((index) => parser?.[index]);
  if (parser) for (const index of parserCallbacks) parser[index] = undefined;
  // Before Node's own listener, which keeps the parser for another connection.
  socket.prependOnceListener('close', () => {
    if (parser) for (const [at, index] of parserCallbacks.entries()) parser[index] = callbacks[at];
  });
  socket.destroy();
}

/** Cuts off the connection of a body with too many small pieces, which Node copies one by one, unless it may come in any. */
export function limitPieces(message: IncomingMessage, inAnyPieces: () => boolean = () => false): void {
  let pieces = 0;
  let bytes = 0;
  const push = message.push.bind(message);
  message.push = (piece: Uint8Array | null, ...more) => {
    if (piece !== null) {
      pieces += 1;
      bytes += piece.length;
      if (isShredded(pieces, bytes) && !inAnyPieces()) {
        cutOff(message.socket);
        return false;
      }
    }
    return push(piece, ...more);
  };
}

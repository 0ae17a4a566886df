// Ends clients that send the messages of gRPC calls in very many small parts.
import { constants, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2';
import { isShredded } from '../pieces.ts';
import { MessageBounds } from './message-bounds.ts';

/** A larger piece pays for itself. */
const smallBytes = 64;

/**
 * Counts the small pieces that neither begin nor end a message, which no client needs to send, and those that follow the response
 * of a call. A connection with too many is ended before they are read; if it is that of a proxy, only the call.
 */
export function limitParts(session: ServerHttp2Session, isProxy: boolean): void {
  const ofSession = { parts: 0, bytes: 0 };
  session.on('stream', (stream: ServerHttp2Stream) => {
    const seen = isProxy ? { parts: 0, bytes: 0 } : ofSession;
    const bounds = new MessageBounds();
    const push = stream.push.bind(stream);
    stream.push = (piece: Buffer | null) => {
      if (piece === null) return push(piece);
      const wasWithin = bounds.isWithin;
      bounds.take(piece, Infinity);
      seen.bytes += piece.length;
      const isPart = (wasWithin && bounds.isWithin) || stream.writableEnded;
      if (!isPart || piece.length >= smallBytes) return push(piece);
      seen.parts += 1;
      if (!isShredded(seen.parts, seen.bytes)) return push(piece);
      if (isProxy) stream.close(constants.NGHTTP2_ENHANCE_YOUR_CALM);
      else session.destroy();
      return false;
    };
  });
}

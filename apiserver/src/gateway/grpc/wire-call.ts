// What grpc-js does not expose of a call: its stream, and how its messages are read.
import type { ServerHttp2Stream } from 'node:http2';
import { type Metadata, type ServerInterceptingCallInterface, status } from '@grpc/grpc-js';
import { MessageBounds } from '../../platform/grpc/message-bounds.ts';
import { addPiece } from '../../platform/pieces.ts';

/** The call next to the wire. */
export type WireCall = ServerInterceptingCallInterface & {
  readonly stream?: ServerHttp2Stream;
  readonly decoder?: FrameDecoder;
  maxReceiveMessageSize?: number;
  /** Takes a message with its head. */
  decompressMessage?: (message: Buffer, encoding: string) => Promise<Buffer>;
};

/** The reader of a call's frames. */
interface FrameDecoder {
  maxReadMessageLength: number;
  readonly readState: number;
  readonly readPartialMessage?: Buffer[];
  write(bytes: Buffer): Buffer[];
}

/** The header in which a server says how messages may be compressed. */
export const acceptedEncodings = 'grpc-accept-encoding';

/** Messages that are taken of a call at once. */
const messagesAtOnce = 16;

const headBytes = 5;
const discardMilliseconds = 100;

/** Returns the socket of a call's connection. */
export const socketOf = ({ stream }: WireCall): unknown => stream?.session?.socket;

/** Reports whether the client has reset or lost the stream. */
export const isLeft = ({ stream }: WireCall): boolean => stream !== undefined && (stream.destroyed || stream.closed);

/** Reports whether the requests have ended within a message, which grpc-js would drop. 0: between two messages. */
export const isTruncated = ({ decoder }: WireCall): boolean => decoder !== undefined && decoder.readState !== 0;

/** Lowers the message size limit of one call; grpc-js has a setting only for the whole port. */
export function limitMessage(call: WireCall, bytes: number): void {
  call.maxReceiveMessageSize = bytes;
  if (call.decoder) call.decoder.maxReadMessageLength = bytes;
}

/**
 * Refuses compressed messages, which grpc-js would expand before anything counts them: four kibibytes to four mebibytes.
 */
export function refuseCompressed(call: WireCall): void {
  call.decompressMessage = async (message, encoding) => {
    if (encoding === 'identity') return message.subarray(headBytes);
    // What grpc-js takes for the status of the call.
    throw Object.assign(new Error(), {
      ...{ code: status.UNIMPLEMENTED, details: 'compressed messages are not accepted', metadata: null },
    });
  };
  const sendMetadata = call.sendMetadata.bind(call);
  call.sendMetadata = (metadata: Metadata) => {
    metadata.set(acceptedEncodings, 'identity');
    sendMetadata(metadata);
  };
}

/**
 * Takes what arrives of a call a few messages at a time: grpc-js takes all that a frame holds, thousands of empty ones, before
 * anything is processed. The next ones follow when these have been read. `count` is called with the bytes of each part. The small
 * pieces of an unfinished message are joined, which grpc-js keeps as they arrive.
 */
export function readInParts({ stream, decoder }: WireCall, count?: (bytes: number) => void): void {
  if (!stream || !decoder) return;
  const bounds = new MessageBounds();
  const write = decoder.write.bind(decoder);
  decoder.write = (bytes) => {
    const end = bounds.take(bytes, messagesAtOnce);
    if (end < bytes.length) {
      stream.pause();
      stream.unshift(bytes.subarray(end));
    }
    count?.(end);
    const messages = write(bytes.subarray(0, end));
    const pieces = decoder.readPartialMessage;
    const last = bounds.isWithin ? pieces?.pop() : undefined;
    if (last) addPiece(pieces!, last);
    // Otherwise it keeps those of a whole message until the next one, or the end of the call.
    else if (!bounds.isWithin) pieces?.splice(0);
    return messages;
  };
}

/**
 * Ends the stream of a call once its response has left, even if the client does not end its request (RFC 9113, section 8.1): it would
 * keep the call, with all its metadata.
 */
export function endAnswered(call: WireCall): void {
  const end = (): void => {
    if (!call.stream?.readableEnded) discardRequest(call);
  };
  if (call.stream?.writableFinished) end();
  else call.stream?.once('finish', end);
}

/** Frees what has arrived of a request, and ends its stream once the status has left. */
export function discardRequest({ stream }: WireCall): void {
  stream?.removeAllListeners('data').resume();
  setTimeout(() => stream?.destroy(), discardMilliseconds).unref();
}

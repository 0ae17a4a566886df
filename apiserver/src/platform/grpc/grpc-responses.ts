// Writes the responses of a handler to a gRPC stream, on the public and the internal port alike.
import { create, type DescMessage, type Message, type MessageInitShape } from '@bufbuild/protobuf';
import type { ServerDuplexStream, ServerWritableStream } from '@grpc/grpc-js';
import type { CallContext } from '../rpc.ts';
import { toMetadata } from './grpc-context.ts';

type Writable = ServerWritableStream<unknown, Message> | ServerDuplexStream<unknown, Message>;

/**
 * Writes every response, applying backpressure, and ends the stream. Response metadata set before the first message is
 * sent ahead of it; later additions and changes are sent as trailers.
 */
export async function writeResponses(
  call: Writable,
  output: DescMessage,
  replies: AsyncIterable<MessageInitShape<DescMessage>>,
  context: CallContext,
): Promise<void> {
  let sent: ReadonlyMap<string, string> | undefined;
  const iterator = replies[Symbol.asyncIterator]();
  /** Writes the next response. Apart from the loop, which would keep it while a slow client has not read it. */
  const writeNext = async (): Promise<'written' | 'full' | 'over'> => {
    const next = await iterator.next();
    if (next.done === true || context.signal.aborted) return 'over';
    if (!sent) {
      sent = new Map(context.responseMetadata);
      call.sendMetadata(toMetadata(sent));
    }
    return call.write(create(output, next.value)) ? 'written' : 'full';
  };
  try {
    for (let state = await writeNext(); state !== 'over'; state = await writeNext()) {
      if (state === 'full') await drained(call, context.signal);
    }
  } finally {
    await iterator.return?.();
  }
  // If the call was cancelled, the handler's end is not a response.
  if (context.signal.aborted) return;
  if (!sent) call.sendMetadata(toMetadata(context.responseMetadata));
  const isTrailer = ([name, value]: [string, string]) => sent !== undefined && sent.get(name) !== value;
  call.end(toMetadata([...context.responseMetadata].filter(isTrailer)));
}

/** Waits until a slow client has received what was written, or has disconnected. */
function drained(stream: Writable, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const finish = (): void => {
      stream.off('drain', finish);
      signal.removeEventListener('abort', finish);
      resolve();
    };
    stream.once('drain', finish);
    signal.addEventListener('abort', finish, { once: true });
  });
}

// How the answers of a handler become messages of a gRPC stream, on the public port and on the internal one alike.
import { create, type DescMessage, type Message, type MessageInitShape } from '@bufbuild/protobuf';
import type { ServerDuplexStream, ServerWritableStream } from '@grpc/grpc-js';
import type { CallContext } from '../rpc.ts';
import { toMetadata } from './grpc-context.ts';

type Writable = ServerWritableStream<unknown, Message> | ServerDuplexStream<unknown, Message>;

/**
 * Writes every answer, waits for a slow reader, and ends the stream. Response metadata that is there when the first answer
 * comes goes ahead of it, what is set or changed later follows the last one as trailers.
 */
export async function writeAnswers(
  call: Writable,
  output: DescMessage,
  answers: AsyncIterable<MessageInitShape<DescMessage>>,
  context: CallContext,
): Promise<void> {
  let sent: ReadonlyMap<string, string> | undefined;
  for await (const answer of answers) {
    if (context.signal.aborted) return;
    if (!sent) {
      sent = new Map(context.responseMetadata);
      call.sendMetadata(toMetadata(sent));
    }
    if (!call.write(create(output, answer))) await drained(call, context.signal);
  }
  // A handler that ends because its call was ended has not answered it.
  if (context.signal.aborted) return;
  if (!sent) call.sendMetadata(toMetadata(context.responseMetadata));
  const isTrailer = ([name, value]: [string, string]) => sent !== undefined && sent.get(name) !== value;
  call.end(toMetadata([...context.responseMetadata].filter(isTrailer)));
}

/** Waits until a slow client has taken what was written, or is gone. */
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

// Marks the end of request streams between processes. HTTP/2 alone does not distinguish it from a caller that gives up:
// Node ends a cancelled stream before it resets it. So complete streams end with a mark, and a stream without it was
// interrupted.
import { create, type DescService, type Message } from '@bufbuild/protobuf';
import { EmptySchema } from '@bufbuild/protobuf/wkt';
import type { MethodDefinition, ServiceDefinition } from '@grpc/grpc-js';
import { KelletError } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';

/** Sent after the last request. */
export const endOfRequests: Message = create(EmptySchema);

/** A tag of wire type 7, with which no message starts. */
const mark = Buffer.of(0x07);

/**
 * Returns the definition of a service as used between processes. Unary calls are streams of one message, so that their
 * end can be observed. Request streams end with a mark.
 */
export function internalService(service: DescService): ServiceDefinition {
  const methods = grpcService(service) as Readonly<Record<string, MethodDefinition<Message, Message>>>;
  return Object.fromEntries(
    Object.entries(methods).map(([name, method]) => [
      name,
      { ...method, ...(method.requestStream && withMark(method)), requestStream: true, responseStream: true },
    ]),
  );
}

const withMark = ({ requestSerialize, requestDeserialize }: MethodDefinition<Message, Message>) => ({
  requestSerialize: (request: Message): Buffer => (request === endOfRequests ? mark : requestSerialize(request)),
  requestDeserialize: (bytes: Buffer): Message => (bytes.equals(mark) ? endOfRequests : requestDeserialize(bytes)),
});

/** Yields the requests of a stream. Throws CANCELLED if it was interrupted. */
export async function* wholeRequests(requests: AsyncIterable<Message>): AsyncGenerator<Message> {
  let isWhole = false;
  for await (const request of requests) {
    if (request === endOfRequests) isWhole = true;
    else yield request;
  }
  if (!isWhole) throw new KelletError('CANCELLED', 'the caller disconnected before the end of its requests');
}

// The end of a stream of requests between processes. HTTP/2 does not tell it from a caller that gives up: Node ends a stream
// that is cancelled before it resets it. So what was sent whole ends with a mark, and what ends without it was cut off.
import { create, type DescService, type Message } from '@bufbuild/protobuf';
import { EmptySchema } from '@bufbuild/protobuf/wkt';
import type { MethodDefinition, ServiceDefinition } from '@grpc/grpc-js';
import { KelletError } from '../platform/errors.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';

/** Comes after the last request. */
export const endOfRequests: Message = create(EmptySchema);

/** A tag of wire type 7, which no message begins with. */
const mark = Buffer.of(0x07);

/**
 * Definitions as they are spoken between processes. A unary call is a stream of one message there: taken as a stream, its end
 * is seen. Streams of requests end with a mark.
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

/** The requests of a stream. Throws CANCELLED where it was cut off. */
export async function* wholeRequests(requests: AsyncIterable<Message>): AsyncGenerator<Message> {
  let isWhole = false;
  for await (const request of requests) {
    if (request === endOfRequests) isWhole = true;
    else yield request;
  }
  if (!isWhole) throw new KelletError('CANCELLED', 'the caller has left in the middle of its requests');
}

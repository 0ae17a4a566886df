// Derives grpc-js service definitions from protobuf-es descriptors, the only protobuf runtime of the data plane.
import { type DescMessage, type DescService, fromBinary, type MessageShape, toBinary } from '@bufbuild/protobuf';
import type { MethodDefinition, ServiceDefinition } from '@grpc/grpc-js';
import { RequestBytes } from '../request-bytes.ts';

const serializer =
  <T extends DescMessage>(type: T) =>
  (message: MessageShape<T>): Buffer =>
    Buffer.from(toBinary(type, message));

const deserializer =
  <T extends DescMessage>(type: T) =>
  (bytes: Buffer): MessageShape<T> =>
    fromBinary(type, bytes);

/** Returns what grpc-js needs to serve or call a service; methods are keyed by their name in the .proto file. */
export function grpcService(service: DescService): ServiceDefinition {
  return Object.fromEntries(
    service.methods.map((method): [string, MethodDefinition<MessageShape<DescMessage>, MessageShape<DescMessage>>] => [
      method.name,
      {
        path: `/${service.typeName}/${method.name}`,
        requestStream: method.methodKind === 'client_streaming' || method.methodKind === 'bidi_streaming',
        responseStream: method.methodKind === 'server_streaming' || method.methodKind === 'bidi_streaming',
        requestSerialize: serializer(method.input),
        requestDeserialize: deserializer(method.input),
        responseSerialize: serializer(method.output),
        responseDeserialize: deserializer(method.output),
      },
    ]),
  );
}

/** Returns the same with requests as bytes, for a server that reports decoding errors itself. */
export function withBinaryRequests(service: ServiceDefinition): ServiceDefinition {
  const requestDeserialize = (bytes: Buffer): RequestBytes => new RequestBytes(bytes);
  return Object.fromEntries(Object.entries(service).map(([name, method]) => [name, { ...method, requestDeserialize }]));
}

// Unary calls of the contract over gRPC.
import { create, type DescMethod, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { type Client, Metadata } from '@grpc/grpc-js';
import { grpcService } from '../../apiserver/src/platform/grpc/grpc-service.ts';

/** Calls a method with an access token or API key, or without a credential if it is empty. Rejects with a ServiceError. */
export function grpcCall<M extends DescMethod>(
  client: Client,
  method: M,
  request: MessageInitShape<M['input']>,
  token = '',
  headers: Readonly<Record<string, string>> = {},
): Promise<MessageShape<M['output']>> {
  const metadata = new Metadata();
  for (const [name, value] of Object.entries(headers)) metadata.set(name, value);
  if (token !== '') metadata.set('authorization', `Bearer ${token}`);
  const { path, requestSerialize, responseDeserialize } = grpcService(method.parent)[method.name]!;
  return new Promise((resolve, reject) => {
    const message = create(method.input, request);
    client.makeUnaryRequest(path, requestSerialize, responseDeserialize, message, metadata, (error, response) =>
      error ? reject(error) : resolve(response as MessageShape<M['output']>),
    );
  });
}

// Calls services of another process over its internal port. Connects on demand and reconnects by itself; without a
// connection, calls fail immediately with UNAVAILABLE.
import { create, type DescMethod, type DescService, type Message, type MessageShape } from '@bufbuild/protobuf';
import {
  Client,
  credentials,
  Metadata,
  status,
  type ClientDuplexStream,
  type MethodDefinition,
  type ServiceError,
} from '@grpc/grpc-js';
import {
  Health as HealthService,
  HealthCheckRequestSchema,
  HealthCheckResponse_ServingStatus as ServingStatus,
  type HealthCheckResponse,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import { KelletError, unavailable } from '../platform/errors.ts';
import { metadataEntries } from '../platform/grpc/grpc-context.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import type { CallContext, Invoker, StreamHandler } from '../platform/rpc.ts';
import { fromInternalStatus } from './call-error.ts';
import { callHeader, encodeContext } from './call-header.ts';
import { endOfRequests, internalService } from './end-of-requests.ts';
import { internalOptions } from './server.ts';

type Call = ClientDuplexStream<Message, Message>;
type Definition = MethodDefinition<Message, Message>;

/** The services of one target in another process. */
export class RemoteInvoker implements Invoker {
  private readonly client: Client;
  private readonly target: string;
  private readonly authorization: string;
  private readonly definitions = new Map<DescService, Readonly<Record<string, Definition>>>();

  /** `target` names the other side in errors; `address` is host:port or any name that gRPC resolves. */
  constructor(target: string, address: string, secret: string) {
    this.target = target;
    this.authorization = `Bearer ${secret}`;
    this.client = new Client(address, credentials.createInsecure(), {
      ...internalOptions,
      'grpc.initial_reconnect_backoff_ms': 100,
      'grpc.max_reconnect_backoff_ms': 1000,
      // Detect a peer whose machine has failed without closing the connection.
      'grpc.keepalive_time_ms': 10_000,
      'grpc.keepalive_timeout_ms': 5_000,
      'grpc.keepalive_permit_without_calls': 1,
      // Balances over all addresses of the name: replicas of a target are reached through a headless Service.
      'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    });
  }

  async unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>> {
    const call = this.open(method, context);
    return new Promise((resolve, reject) => {
      call.once('data', (reply: Message) => {
        // The other side runs its afterResponse when this side ends the call.
        context.afterResponse(() => call.end());
        resolve(reply as MessageShape<M['output']>);
      });
      call.once('error', (failure: ServiceError) => reject(fromInternalStatus(failure, this.target)));
      call.once('end', () => reject(unavailable(`${this.target} ended the call without a response`)));
      call.write(request);
    });
  }

  stream(method: DescMethod): StreamHandler {
    return (input, context) => {
      const call = this.open(method, context);
      // An error thrown by the source of the requests (when one is rejected) becomes the outcome of the call.
      const refused: { error?: unknown } = {};
      if (method.methodKind === 'server_streaming') call.end(input as Message);
      else
        send(call, input as AsyncIterable<Message>, context.signal).catch((error: unknown) => {
          refused.error = error;
          call.cancel();
        });
      const replies = this.replies(call, refused);
      return method.methodKind === 'client_streaming' ? this.only(replies) : replies;
    };
  }

  /** Checks that the other side reports serving this service. Rejects if not, or on timeout. */
  async check(service: string, timeoutMilliseconds: number): Promise<void> {
    const { path, requestSerialize, responseDeserialize } = grpcService(HealthService)['Check'] as Definition;
    const metadata = new Metadata();
    metadata.set('authorization', this.authorization);
    const request = create(HealthCheckRequestSchema, { service });
    const deadline = Date.now() + timeoutMilliseconds;
    const reply = await new Promise<HealthCheckResponse>((resolve, reject) => {
      this.client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        metadata,
        { deadline },
        (error, response) => (error ? reject(new Error(status[error.code])) : resolve(response as HealthCheckResponse)),
      );
    });
    if (reply.status !== ServingStatus.SERVING) throw new Error('not serving');
  }

  /** Closes the connection; running calls fail. */
  close(): void {
    this.client.close();
  }

  private open(method: DescMethod, context: CallContext): Call {
    const { path, requestSerialize, responseDeserialize } = this.definition(method);
    const metadata = new Metadata();
    metadata.set('authorization', this.authorization);
    metadata.set(callHeader, encodeContext(context));
    const options = context.deadline === undefined ? {} : { deadline: context.deadline };
    const call = this.client.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata, options);
    const take = (received: Metadata): void => {
      for (const [name, value] of metadataEntries(received)) {
        if (isOfTheService(name)) context.responseMetadata.set(name, value);
      }
    };
    call.on('metadata', take);
    call.on('status', ({ metadata: trailers }: { metadata: Metadata }) => take(trailers));
    // The waiter for the response receives the failure; later ones are irrelevant.
    call.on('error', () => undefined);
    const cancel = (): void => call.cancel();
    context.signal.addEventListener('abort', cancel, { once: true });
    call.once('close', () => context.signal.removeEventListener('abort', cancel));
    if (context.signal.aborted) cancel();
    return call;
  }

  private definition(method: DescMethod): Definition {
    let methods = this.definitions.get(method.parent);
    if (!methods) {
      methods = internalService(method.parent);
      this.definitions.set(method.parent, methods);
    }
    return methods[method.name]!;
  }

  private async *replies(call: Call, refused: { readonly error?: unknown }): AsyncIterable<Message> {
    try {
      for await (const reply of call) yield reply as Message;
    } catch (thrown) {
      if ('error' in refused) throw refused.error;
      throw isServiceError(thrown) ? fromInternalStatus(thrown, this.target) : thrown;
    } finally {
      call.cancel();
    }
  }

  private async only(replies: AsyncIterable<Message>): Promise<Message> {
    let reply: Message | undefined;
    for await (const message of replies) reply = message;
    if (!reply) throw new KelletError('INTERNAL', 'internal error', { cause: new Error(`${this.target}: no reply`) });
    return reply;
  }
}

async function send(call: Call, requests: AsyncIterable<Message>, signal: AbortSignal): Promise<void> {
  for await (const request of requests) {
    if (call.destroyed || call.writableEnded) return;
    if (!call.write(request)) await drained(call);
  }
  // A caller that has disconnected can look like one that has sent everything.
  if (signal.aborted || call.destroyed || call.writableEnded) return;
  call.write(endOfRequests);
  call.end();
}

/** Waits until the other side has accepted what was written, or the call is over. */
function drained(call: Call): Promise<void> {
  return new Promise((resolve) => {
    const finish = (): void => {
      call.off('drain', finish);
      call.off('close', finish);
      resolve();
    };
    call.once('drain', finish);
    call.once('close', finish);
  });
}

const isServiceError = (thrown: unknown): thrown is ServiceError =>
  thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'number';

/** Excludes metadata that gRPC itself adds. */
const isOfTheService = (name: string): boolean =>
  !name.startsWith('grpc-') && !['content-type', 'date', 'kellet-error-bin'].includes(name);

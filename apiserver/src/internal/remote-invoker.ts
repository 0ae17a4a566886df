// Calls services of another process over its internal port. Connects on demand and reconnects by itself. Calls fail with
// UNAVAILABLE at once if nothing listens there, and within seconds if there is no response, for example because the
// process is frozen or the network drops packets.
import {
  create,
  type DescMethod,
  type DescService,
  getOption,
  hasOption,
  type Message,
  type MessageShape,
} from '@bufbuild/protobuf';
import {
  Client,
  type ClientDuplexStream,
  connectivityState,
  Metadata,
  type MethodDefinition,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { http } from '@kellet/proto/es/google/api/annotations_pb';
import {
  Health as HealthService,
  HealthCheckRequestSchema,
  type HealthCheckResponse,
  HealthCheckResponse_ServingStatus as ServingStatus,
} from '@kellet/proto/es/grpc/health/v1/health_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { KelletError, unavailable } from '../platform/errors.ts';
import { metadataEntries } from '../platform/grpc/grpc-context.ts';
import { grpcService } from '../platform/grpc/grpc-service.ts';
import { currentTrace } from '../platform/observability/tracing.ts';
import { type CallContext, type Invoker, isOpenEnded, type StreamHandler } from '../platform/rpc.ts';
import { fromInternalStatus, isLostConnection, saysChanged } from './call-error.ts';
import { callHeader, encodeContext } from './call-header.ts';
import { controlCredentials, type ControlTlsFiles } from './control-tls.ts';
import { endOfRequests, internalService } from './end-of-requests.ts';
import { internalOptions } from './server.ts';

type Call = ClientDuplexStream<Message, Message>;
type Definition = MethodDefinition<Message, Message>;

/** Timeout for establishing a connection. grpc-js has none for a process that accepts the connection but never responds. */
const connectMilliseconds = 2000;

/** Longer than any call: a creation takes at most 10 s, and 30 s to learn its outcome (docs/decisions/0024). */
const callMilliseconds = 60_000;

/** The same for a package, whose artifact may be queued and take half an hour to fetch. */
const packageMilliseconds = 32 * 60_000;

/** POST methods that may safely be repeated. */
const repeatable: ReadonlySet<DescMethod> = new Set<DescMethod>([
  AuthService.method.validateToken,
  TelemetryService.method.ingest,
]);

/** The services of one target in another process. */
export class RemoteInvoker implements Invoker {
  private client: Client;
  private connecting: Promise<void> | undefined;
  private isClosed = false;
  private readonly address: string;
  private readonly target: string;
  private readonly authorization: string;
  private readonly tls: ControlTlsFiles | undefined;
  private readonly definitions = new Map<DescService, Readonly<Record<string, Definition>>>();

  /** `target` names the other side in errors; `address` is host:port or any name that gRPC resolves. */
  constructor(target: string, address: string, secret: string, tls?: ControlTlsFiles) {
    this.target = target;
    this.tls = tls;
    this.authorization = `Bearer ${secret}`;
    this.address = address;
    this.client = this.createClient();
  }

  async unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>> {
    const trace = currentTrace();
    await this.connected();
    const isSent = this.state() === connectivityState.READY;
    const call = this.open(method, context, context.deadline ?? defaultDeadline(method));
    return new Promise((resolve, reject) => {
      call.once('data', (reply: Message) => {
        // The other side runs its afterResponse when this side ends the call.
        context.afterResponse(() => call.end());
        resolve(reply as MessageShape<M['output']>);
      });
      call.once('error', (failure: ServiceError) => {
        if (saysChanged(failure)) trace?.markChanged();
        reject(this.errorOf(failure, isSent && mayHaveChanged(method)));
      });
      call.once('end', () => reject(unavailable(`${this.target} ended the call without a response`)));
      call.write(request);
    });
  }

  stream(method: DescMethod): StreamHandler {
    return (input, context) => {
      const replies = this.replies(method, input, context);
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
    // A connection attempt that hangs is replaced even if only checks use it.
    this.connected().catch(() => undefined);
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
    this.isClosed = true;
    this.client.close();
  }

  private createClient(): Client {
    return new Client(this.address, controlCredentials(this.tls), {
      ...internalOptions,
      // In handshakes; an address is not allowed there. It is not verified.
      'grpc.ssl_target_name_override': 'kellet-control',
      'grpc.initial_reconnect_backoff_ms': 100,
      'grpc.max_reconnect_backoff_ms': 1000,
      // Detects within seconds a peer that is frozen, or whose machine has failed without closing the connection.
      'grpc.keepalive_time_ms': 3000,
      'grpc.keepalive_timeout_ms': 5000,
      'grpc.keepalive_permit_without_calls': 1,
      // Otherwise a new client would get the connection attempts of the one that it replaces.
      'grpc.use_local_subchannel_pool': 1,
      // By default a name is resolved again 30 s after the last time at the earliest. A rolling update may replace every
      // address in less.
      'grpc.dns_min_time_between_resolutions_ms': 1000,
      // Balances over all addresses of the name: replicas of a target are reached through a headless Service.
      'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
    });
  }

  private state(): connectivityState {
    return this.client.getChannel().getConnectivityState(true);
  }

  /**
   * Waits until a connection is established. Throws UNAVAILABLE if that takes too long; the next attempt then begins
   * afresh, because the old one could remain stuck after the other side is back.
   */
  private async connected(): Promise<void> {
    // After a failed attempt, calls fail immediately by themselves.
    if (!isPending(this.state())) return;
    this.connecting ??= this.connect(Date.now() + connectMilliseconds).finally(() => (this.connecting = undefined));
    return this.connecting;
  }

  private async connect(deadline: number): Promise<void> {
    for (let state = this.state(); isPending(state); state = this.state()) {
      const hasChanged = await new Promise<boolean>((resolve) =>
        this.client.getChannel().watchConnectivityState(state, deadline, (error) => resolve(!error)),
      );
      if (hasChanged) continue;
      if (!this.isClosed) {
        this.client.close();
        this.client = this.createClient();
      }
      throw unavailable(`${this.target} is not available`);
    }
  }

  /**
   * Returns the error for the caller. A lost connection does not tell whether the other side has carried out the call, or
   * will; UNAVAILABLE would (docs/decisions/0024).
   */
  private errorOf(failure: ServiceError, isOutcomeUnknown: boolean): KelletError {
    const error = fromInternalStatus(failure, this.target);
    if (!isOutcomeUnknown || !isLostConnection(failure)) return error;
    const message = `the connection to ${this.target} was lost: the outcome of the call is unknown`;
    return new KelletError('DEADLINE_EXCEEDED', message, { cause: failure });
  }

  private open(method: DescMethod, context: CallContext, deadline: number | undefined): Call {
    const { path, requestSerialize, responseDeserialize } = this.definition(method);
    const metadata = new Metadata();
    metadata.set('authorization', this.authorization);
    metadata.set(callHeader, encodeContext(context));
    const options = deadline === undefined ? {} : { deadline };
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

  private async *replies(
    method: DescMethod,
    input: Parameters<StreamHandler>[0],
    context: CallContext,
  ): AsyncGenerator<Message> {
    const trace = currentTrace();
    await this.connected();
    const call = this.open(method, context, context.deadline);
    // An error thrown by the source of the requests (when one is rejected) becomes the outcome of the call.
    const refused: { error?: unknown } = {};
    if (method.methodKind === 'server_streaming') call.end(input as Message);
    else
      send(call, input as AsyncIterable<Message>, context.signal).catch((error: unknown) => {
        refused.error = error;
        call.cancel();
      });
    try {
      for await (const reply of call) yield reply as Message;
    } catch (thrown) {
      if ('error' in refused) {
        // What the other side has made of earlier requests is unknown: the call was cancelled.
        if (mayHaveChanged(method)) trace?.markChanged();
        throw refused.error;
      }
      if (!isServiceError(thrown)) throw thrown;
      if (saysChanged(thrown)) trace?.markChanged();
      throw this.errorOf(thrown, false);
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

const isPending = (state: connectivityState): boolean =>
  state === connectivityState.CONNECTING || state === connectivityState.IDLE;

/** Returns the deadline, in milliseconds since 1970, of a unary call whose client has set none. */
function defaultDeadline(method: DescMethod): number | undefined {
  if (isOpenEnded(method)) return undefined;
  return Date.now() + (method === OtaService.method.createPackage ? packageMilliseconds : callMilliseconds);
}

const mayHaveChanged = (method: DescMethod): boolean =>
  !repeatable.has(method) && !(hasOption(method, http) && getOption(method, http).pattern.case === 'get');

const isServiceError = (thrown: unknown): thrown is ServiceError =>
  thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'number';

/** Excludes metadata that gRPC itself adds. */
const isOfTheService = (name: string): boolean =>
  !name.startsWith('grpc-') && !['content-type', 'date', 'kellet-error-bin'].includes(name);

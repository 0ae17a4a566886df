// Internal port (9091), which requires the shared secret. Serves calls of other processes to services of this one, and
// the control service for the operator.
import { createHash, timingSafeEqual } from 'node:crypto';
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescService,
  type Message,
  type MessageInitShape,
} from '@bufbuild/protobuf';
import {
  type Metadata,
  type ServerDuplexStream,
  ServerInterceptingCall,
  type ServerInterceptor,
  type ServiceDefinition,
  status,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { addressBlock } from '../platform/addresses/address-block.ts';
import { codes, KelletError, unavailable } from '../platform/errors.ts';
import { GrpcContext, toMetadata } from '../platform/grpc/grpc-context.ts';
import { GrpcPort } from '../platform/grpc/grpc-port.ts';
import { writeResponses } from '../platform/grpc/grpc-responses.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { readTraceContext } from '../platform/observability/trace-context.ts';
import { beginTrace, endTrace, inTrace, rpcAttributes, type Trace } from '../platform/observability/tracing.ts';
import { isOpenEnded, type ServiceRegistry } from '../platform/rpc.ts';
import { TlsFiles } from '../platform/tls/tls-files.ts';
import { createTlsListener } from '../platform/tls/tls-listener.ts';
import { toInternalStatus } from './call-error.ts';
import { callHeader, decodeContext } from './call-header.ts';
import type { ControlTlsFiles } from './control-tls.ts';
import { internalService, wholeRequests } from './end-of-requests.ts';
import { Stalls } from './stalls.ts';

/** Milliseconds for running calls to finish when the process stops. */
const drainMilliseconds = 10_000;

/** Sizes are limited at the public ports; the default window of 64 KiB would slow down large messages. */
export const internalOptions = {
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  'grpc-node.flow_control_window': 4 * 1024 * 1024,
} as const;

/**
 * A gateway sends all its calls to a process through one connection, which may be idle for long. Reconnecting would
 * gain nothing. Clients that cancel their calls must not end it: those of all others would fail with it.
 */
const internalLimits = {
  proxyStreams: 1_000_000,
  idleTimeout: 24 * 60 * 60 * 1000,
  connectionAge: Infinity,
  proxyCancellations: { burst: 1_000_000, perSecond: 1_000_000 },
};

type Call = ServerDuplexStream<Message, Message>;

/** gRPC server of the internal port. */
export class InternalServer {
  private readonly port: GrpcPort;
  private readonly logger: Logger;
  private readonly tls: TlsFiles | undefined;
  private readonly stop = new AbortController();
  private readonly stalls = new Stalls();

  /** With `tls` clients must also present a certificate of its authority. */
  constructor(secret: string, logger: Logger, tls?: ControlTlsFiles) {
    this.logger = logger;
    const files = tls && new TlsFiles(tls.certFile, tls.keyFile, logger, tls.caFile);
    this.tls = files;
    this.port = new GrpcPort(
      { ...internalOptions, interceptors: [secretInterceptor(digest(secret))] },
      internalLimits,
      {
        isProxy: () => true,
        listen:
          files &&
          (({ connections, prefaceTimeout: handshakeTimeout }, accept) =>
            createTlsListener(files, { connections, handshakeTimeout, ALPNProtocols: ['h2'] }, logger, accept)),
      },
    );
  }

  /** Aborted when the server closes, to end open streams. */
  get stopping(): AbortSignal {
    return this.stop.signal;
  }

  /** Adds a service implemented by gRPC handlers. */
  addService(definition: ServiceDefinition, implementation: UntypedServiceImplementation): void {
    this.port.addService(definition, implementation);
  }

  /** Adds all services of the registry, for the RemoteInvoker of another process. */
  addServicesOf(registry: ServiceRegistry): void {
    for (const service of registry.services()) {
      this.port.addService(internalService(service), this.handlersOf(service, registry));
    }
  }

  /** Starts listening and returns the port, which the system chooses for 0. */
  listen(host: string, port: number): Promise<number> {
    this.tls?.start();
    return this.port.listen(host, port);
  }

  /** Ends waiting calls, lets the others finish, and closes. */
  async close(): Promise<void> {
    this.stop.abort();
    this.tls?.stop();
    this.stalls.stop();
    await this.port.closeWithin(drainMilliseconds);
  }

  private handlersOf(service: DescService, registry: ServiceRegistry): UntypedServiceImplementation {
    return Object.fromEntries(
      service.methods.map((method) => [method.name, (call: Call) => void this.handle(method, call, registry)]),
    );
  }

  private async handle(method: DescMethod, call: Call, registry: ServiceRegistry): Promise<void> {
    // Destroying a stream emits an error, which must be handled.
    call.on('error', () => undefined);
    let context: GrpcContext | undefined;
    let trace: Trace | undefined;
    let end: () => void = () => undefined;
    try {
      const { metadata, ...facts } = decodeContext(call.metadata.get(callHeader)[0] as Buffer);
      const opened = (context = new GrpcContext(call, {
        ...facts,
        metadataOf: () => metadata,
        responseMetadata: new Map(),
      }));
      const stopped = new Promise<never>((_resolve, reject) => {
        end = () => {
          opened.abort();
          reject(unavailable('the server is stopping'));
        };
      });
      if (isOpenEnded(method)) this.stopping.addEventListener('abort', end);
      if (isOpenEnded(method) && this.stopping.aborted) end();
      const run = method.methodKind === 'unary' ? runUnary : runStream;
      trace = beginTrace(
        `${method.parent.typeName}/${method.name}`,
        'SERVER',
        readTraceContext(opened.metadata.get('traceparent'), opened.metadata.get('tracestate')),
        () => rpcAttributes(method),
      );
      trace.requestId = opened.requestId;
      trace.owner = opened.caller.tenantId || addressBlock(opened.address);
      // If the caller gave up while this process was frozen, its cancellation arrives first.
      await this.stalls.settled();
      if (opened.signal.aborted) throw new KelletError('CANCELLED', 'the caller has disconnected');
      await inTrace(trace, () => Promise.race([run(method, call, registry, opened), stopped]));
      endTrace(trace, { 'rpc.grpc.status_code': status.OK });
    } catch (thrown) {
      const failure = toInternalStatus(thrown, trace?.hasChanged ?? false);
      const fault = codes[failure.error.code].http >= 500 ? failure.error.code : undefined;
      if (trace) endTrace(trace, { 'rpc.grpc.status_code': failure.code }, fault);
      if (failure.error.code === 'INTERNAL') {
        const request_id = context?.requestId;
        this.logger.error({ err: failure.error.cause, request_id, method: method.name }, 'internal call failed');
      }
      call.emit('error', failure);
    } finally {
      this.stopping.removeEventListener('abort', end);
      context?.finish();
    }
  }
}

/**
 * Runs a unary call. The caller keeps its side open until the client has the response, so that
 * CallContext.afterResponse works across processes.
 */
async function runUnary(method: DescMethod, call: Call, registry: ServiceRegistry, context: GrpcContext) {
  const request = await new Promise<Message>((resolve, reject) => {
    call.once('data', resolve);
    call.once('close', () => reject(unavailable('the call ended without a request')));
  });
  const over = new Promise<void>((resolve) => {
    call.once('end', resolve);
    if (call.readableEnded || context.signal.aborted) resolve();
    context.signal.addEventListener('abort', () => resolve(), { once: true });
  });
  const reply = await registry.unary(method, request, context);
  call.sendMetadata(toMetadata(context.responseMetadata));
  call.write(reply);
  await over;
  context.finish();
  call.end();
}

async function runStream(method: DescMethod, call: Call, registry: ServiceRegistry, context: GrpcContext) {
  // Leaving an ordinary loop over a stream destroys it, and with it the pending response.
  const requests = call.iterator({ destroyOnReturn: false }) as AsyncIterable<Message>;
  const handler = registry.stream(method);
  if (method.methodKind === 'server_streaming') {
    for await (const request of requests) {
      return writeResponses(call, method.output, responsesOf(handler(request, context)), context);
    }
    return;
  }
  const result = handler(wholeRequests(requests), context);
  if (method.methodKind === 'bidi_streaming') {
    return writeResponses(call, method.output, responsesOf(result), context);
  }
  const reply = create(method.output, await (result as Promise<Message>));
  call.sendMetadata(toMetadata(context.responseMetadata));
  call.write(reply);
  call.end();
}

const responsesOf = (result: unknown) => result as AsyncIterable<MessageInitShape<DescMessage>>;

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

/** Compares the secret as a digest, so that timing reveals neither content nor length. */
function knows(metadata: Metadata, secret: Buffer): boolean {
  const given = metadata.get('authorization')[0];
  const token = typeof given === 'string' && given.startsWith('Bearer ') ? given.slice('Bearer '.length) : '';
  return timingSafeEqual(digest(token), secret);
}

const secretInterceptor =
  (secret: Buffer): ServerInterceptor =>
  (_method, call) =>
    new ServerInterceptingCall(call, {
      start: (next) =>
        next({
          onReceiveMetadata: (metadata, proceed) => {
            if (knows(metadata, secret)) proceed(metadata);
            else call.sendStatus({ code: status.UNAUTHENTICATED, details: 'the control secret is required' });
          },
        }),
    });

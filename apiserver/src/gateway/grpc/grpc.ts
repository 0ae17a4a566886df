// gRPC on port 9090: serves the contract's services with the same steps as REST.
import type { Readable } from 'node:stream';
import { create, type DescMethod, type DescService, type Message } from '@bufbuild/protobuf';
import {
  type sendUnaryData,
  type ServerDuplexStream,
  type ServerReadableStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  status,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import { KelletError } from '../../platform/errors.ts';
import { type GrpcCall, GrpcContext, metadataEntries, toMetadata } from '../../platform/grpc/grpc-context.ts';
import { GrpcPort } from '../../platform/grpc/grpc-port.ts';
import { writeResponses } from '../../platform/grpc/grpc-responses.ts';
import { grpcService, withBinaryRequests } from '../../platform/grpc/grpc-service.ts';
import { inTrace } from '../../platform/observability/tracing.ts';
import type { RequestBytes } from '../../platform/request-bytes.ts';
import type { CallContext, Invoker } from '../../platform/rpc.ts';
import type { TlsFiles } from '../../platform/tls/tls-files.ts';
import { createTlsListener } from '../../platform/tls/tls-listener.ts';
import { type OpenCallParts, whileAllowed } from '../admission/open-call.ts';
import { requestMetadata } from '../http/metadata.ts';
import type { DecodingTurns } from '../memory/decoding-turns.ts';
import { isLarge, type LargeRequests } from '../memory/large-requests.ts';
import { accessOf, changesNothing } from '../transcoding/routes.ts';
import { concurrentCalls } from './call-allowance.ts';
import { crowded, GrpcAdmission, type GrpcAdmissionParts, type RunningCall } from './grpc-admission.ts';
import { maximumMessageBytes, readRequest, toStatus } from './grpc-call.ts';

/** Dependencies of the gRPC server. */
export interface GrpcParts extends GrpcAdmissionParts, OpenCallParts {
  readonly invoker: Invoker;
  readonly large: LargeRequests;
  readonly turns: DecodingTurns;
  /** Undefined without TLS. */
  readonly tls: TlsFiles | undefined;
}

/**
 * Makes a stream hold one message that the handler has not taken, instead of the sixteen of Node's streams of objects:
 * several mebibytes each, of every stream, would exceed what a tenant may hold.
 */
function readOneAhead(call: StreamCall): void {
  const { _readableState: state } = call as unknown as { _readableState?: { highWaterMark: number } };
  if (state) state.highWaterMark = 1;
}

/** Creates the port; the caller starts listening. */
export function createGrpcPort(parts: GrpcParts): GrpcPort {
  const { tls } = parts;
  const admission = new GrpcAdmission(parts);
  const port = new GrpcPort(
    { 'grpc.max_receive_message_length': maximumMessageBytes, interceptors: [admission.interceptor] },
    { streams: concurrentCalls.atFirst, proxyStreams: concurrentCalls.usual, ...parts.limits },
    {
      isProxy: parts.isProxy,
      listen:
        tls &&
        (({ connections, prefaceTimeout: handshakeTimeout }, accept) =>
          createTlsListener(tls, { connections, handshakeTimeout, ALPNProtocols: ['h2'] }, parts.logger, accept)),
    },
  );
  for (const service of parts.services) {
    port.addService(withBinaryRequests(grpcService(service)), implementationOf(parts, admission, service));
  }
  return port;
}

/** Whose messages those of a call are. */
const ownerOf = ({ caller, entry }: RunningCall): string => caller.tenantId || addressBlock(entry.address);

type UnaryCall = ServerUnaryCall<RequestBytes, Message>;
type StreamCall =
  | ServerReadableStream<RequestBytes, Message>
  | ServerWritableStream<RequestBytes, Message>
  | ServerDuplexStream<RequestBytes, Message>;

function implementationOf(
  parts: GrpcParts,
  admission: GrpcAdmission,
  service: DescService,
): UntypedServiceImplementation {
  return Object.fromEntries(
    service.methods.map((method) => {
      const run = (call: GrpcCall, reply: (running: RunningCall) => Promise<void>): void => {
        const running = admission.of(call);
        void inTrace(running.trace, () => reply(running));
      };
      const handler =
        method.methodKind === 'unary'
          ? (call: UnaryCall, done: sendUnaryData<Message>) =>
              run(call, (running) => handleUnary(parts, method, call, running, done))
          : (call: StreamCall, done?: sendUnaryData<Message>) =>
              run(call, (running) => handleStream(parts, method, call, running, done));
      return [method.name, handler];
    }),
  );
}

function contextOf(call: GrpcCall, running: RunningCall): GrpcContext {
  const { caller, entry, headers, trace } = running;
  const context = new GrpcContext(call, {
    caller,
    requestId: entry.requestId,
    address: entry.address,
    metadataOf: () => requestMetadata(metadataEntries(call.metadata), trace),
    responseMetadata: headers,
  });
  running.whenOver((code) => {
    context.finish();
    // grpc-js reports a passed deadline to the handler only after the client has read what was sent before, which may
    // never happen.
    if (code !== status.OK) context.abort();
  });
  return context;
}

/**
 * Decodes the only message of a call, whose bytes are not kept after that. A call that changes nothing may wait for long, and what is
 * decoded with it: its message goes on counting, so that it can be rejected if memory runs short.
 */
function takeRequest(method: DescMethod, sent: RequestBytes, running: RunningCall): Message {
  const bytes = sent.take();
  if (!bytes) throw crowded();
  const request = readRequest(method, bytes);
  if (!changesNothing(method)) running.takeMessage();
  return request;
}

async function handleUnary(
  parts: GrpcParts,
  method: DescMethod,
  call: UnaryCall,
  running: RunningCall,
  done: sendUnaryData<Message>,
): Promise<void> {
  const { headers } = running;
  try {
    const contents = method === TelemetryService.method.ingest ? 'points' : 'others';
    // Those of calls that change nothing are counted until these are over.
    const bytes = changesNothing(method) ? 0 : call.request.length;
    // Counted while it waits for its turn there.
    if (isLarge(bytes, contents)) running.takeMessage();
    const result = await parts.large.run(running.caller.tenantId, bytes, contents, async () => {
      const turn = parts.turns.enter(ownerOf(running), call.request.length);
      if (turn) await turn;
      const request = takeRequest(method, call.request, running);
      await running.readmit();
      await parts.admission.admitDevice(accessOf(method), method, request, running.caller, running.entry);
      const context = contextOf(call, running);
      return whileAllowed(parts, method, running, context, () => parts.invoker.unary(method, request, context));
    });
    call.sendMetadata(toMetadata(headers));
    done(null, result);
  } catch (thrown) {
    done(toStatus(thrown, headers, parts.logger));
  }
}

async function handleStream(
  parts: GrpcParts,
  method: DescMethod,
  call: StreamCall,
  running: RunningCall,
  done: sendUnaryData<Message> | undefined,
): Promise<void> {
  try {
    readOneAhead(call);
    // Its only message may have arrived long after the call was admitted; calls with more are watched from their beginning.
    if ('request' in call) {
      const turn = parts.turns.enter(ownerOf(running), call.request.length);
      if (turn) await turn;
      await running.readmit();
    }
    const context = contextOf(call, running);
    await whileAllowed(parts, method, running, context, () => run(parts, method, call, done, { running, context }));
  } catch (thrown) {
    const outcome = toStatus(thrown, running.headers, parts.logger);
    if (done) done(outcome);
    else call.emit('error', outcome);
  }
}

async function run(
  parts: GrpcParts,
  method: DescMethod,
  call: StreamCall,
  done: sendUnaryData<Message> | undefined,
  { running, context }: { running: RunningCall; context: CallContext },
): Promise<void> {
  const handler = parts.invoker.stream(method);
  const turn = method === TelemetryService.method.ingestStream ? new MessageTurn(parts.large) : undefined;
  const requests =
    'request' in call
      ? takeRequest(method, call.request, running)
      : readRequests(method, call, running, { turn, turns: parts.turns });
  const result = handler(requests, context);
  if (done) {
    const reply = create(method.output, await (result as Promise<Message>));
    call.sendMetadata(toMetadata(context.responseMetadata));
    done(null, reply);
    return;
  }
  const writable = call as ServerWritableStream<RequestBytes, Message>;
  const responses = result as AsyncIterable<Message>;
  await writeResponses(writable, method.output, turn?.endedBy(responses) ?? responses, context);
}

/**
 * The turn of one message of a stream: from before it is decoded until the handler responds or reads the next one. A client
 * that does not read its responses has no turn meanwhile.
 */
class MessageTurn {
  private readonly large: LargeRequests;
  private leave: () => void = () => undefined;

  constructor(large: LargeRequests) {
    this.large = large;
  }

  async begin(tenantId: string, bytes: number): Promise<void> {
    this.leave = await this.large.begin(tenantId, bytes);
  }

  end(): void {
    this.leave();
  }

  async *endedBy(responses: AsyncIterable<Message>): AsyncIterable<Message> {
    for await (const response of responses) {
      this.end();
      yield response;
    }
  }
}

/**
 * Yields the messages of a stream. Read by hand: the iterator of a stream would destroy it, and with it the pending response,
 * and takes as much memory as all else that is kept for an open stream.
 */
async function* readRequests(
  method: DescMethod,
  call: Readable,
  running: RunningCall,
  { turn, turns }: { readonly turn: MessageTurn | undefined; readonly turns: DecodingTurns },
): AsyncIterable<Message> {
  let failure: Error | undefined;
  let rouse: (() => void) | undefined;
  const wake = (error?: Error): void => {
    failure ??= error;
    rouse?.();
  };
  call.on('readable', wake).on('end', wake).on('error', wake).on('close', wake);
  try {
    for (;;) {
      if (call.readableEnded) return;
      // grpc-js destroys the stream of a client that has disconnected.
      if (call.destroyed) throw new KelletError('CANCELLED', 'the client has disconnected', { cause: failure });
      if (failure) throw failure;
      const sent = call.read() as RequestBytes | null;
      if (sent) {
        running.takeMessage();
        await turn?.begin(running.caller.tenantId, sent.length);
        await turns.enter(ownerOf(running), sent.length);
        yield readRequest(method, sent.take()!);
        turn?.end();
      } else if (!call.readableEnded) await new Promise<void>((resolve) => (rouse = resolve));
    }
  } finally {
    turn?.end();
    call.off('readable', wake).off('end', wake).off('error', wake).off('close', wake);
  }
}

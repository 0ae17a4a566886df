// gRPC on port 9090: services whose definitions are the descriptors, with the same steps as REST.
import type { Readable } from 'node:stream';
import { create, type DescMethod, type DescService, type Message } from '@bufbuild/protobuf';
import {
  type ServerDuplexStream,
  type ServerReadableStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  type UntypedServiceImplementation,
  type sendUnaryData,
} from '@grpc/grpc-js';
import { codes, unavailable, type ErrorCode } from '../platform/errors.ts';
import { writeAnswers } from '../platform/grpc-answers.ts';
import { GrpcContext, metadataEntries, metadataText, toMetadata, type GrpcCall } from '../platform/grpc-context.ts';
import { GrpcPort, type GrpcLimits } from '../platform/grpc-port.ts';
import { grpcService } from '../platform/grpc-service.ts';
import type { Logger } from '../platform/logger.ts';
import type { CallContext, Caller, Invoker } from '../platform/rpc.ts';
import type { AccessEntry, AccessLog } from './access-log.ts';
import type { Admission } from './admission.ts';
import { credentialOf, type Authenticator } from './authenticate.ts';
import { authorize } from './authorize.ts';
import type { AddressOf } from './client-address.ts';
import type { CallMetrics } from './call-metrics.ts';
import { endCall, traceCall } from './call-trace.ts';
import { currentTrace } from '../platform/tracing.ts';
import { namespaceHeader } from './metadata.ts';
import { accessOf } from './routes.ts';
import { addressOfCall, checkRequest, grpcRequestId, toStatus } from './grpc-call.ts';
import { requestMetadata } from './metadata.ts';

/** What the gRPC server is made of. */
export interface GrpcParts {
  readonly services: readonly DescService[];
  readonly admission: Admission;
  readonly authenticator: Authenticator;
  readonly invoker: Invoker;
  readonly metrics: CallMetrics;
  readonly logger: Logger;
  readonly addressOf: AddressOf;
  readonly accessLog: AccessLog;
  readonly limits: Partial<GrpcLimits>;
  /** Aborts when the process stops: open streams are ended then. */
  readonly stopping: AbortSignal;
}

/** Makes the port; the caller listens. */
export function createGrpcPort(parts: GrpcParts): GrpcPort {
  const port = new GrpcPort({ 'grpc.max_receive_message_length': 4 * 1024 * 1024 + 64 * 1024 }, parts.limits);
  for (const service of parts.services) {
    port.addService(grpcService(service), implementationOf(parts, service));
  }
  return port;
}

type UnaryCall = ServerUnaryCall<Message, Message>;
type StreamCall =
  | ServerReadableStream<Message, Message>
  | ServerWritableStream<Message, Message>
  | ServerDuplexStream<Message, Message>;

function implementationOf(parts: GrpcParts, service: DescService): UntypedServiceImplementation {
  return Object.fromEntries(
    service.methods.map((method) => {
      const handler =
        method.methodKind === 'unary'
          ? (call: UnaryCall, done: sendUnaryData<Message>) =>
              traceCall(method, call.metadata, () => void answerUnary(parts, method, call, done))
          : (call: StreamCall, done?: sendUnaryData<Message>) =>
              traceCall(method, call.metadata, () => void answerStream(parts, method, call, done));
      return [method.name, handler];
    }),
  );
}

function beginEntry(parts: GrpcParts, method: DescMethod, call: GrpcCall, requestId: string): AccessEntry {
  const entry = parts.accessLog.begin(
    'grpc',
    '',
    requestId,
    parts.accessLog.isOn ? currentTrace()?.traceparent : undefined,
  );
  entry.route = `${method.parent.typeName}/${method.name}`;
  entry.address = addressOfCall(parts.addressOf, call);
  return entry;
}

/** The call is over: it is counted and logged. */
function observe(parts: GrpcParts, method: DescMethod, entry: AccessEntry, code: ErrorCode | 'OK'): void {
  parts.metrics.observe(method, 'grpc', code, entry.started);
  entry.code = code;
  entry.status = code === 'OK' ? 0 : codes[code].grpc;
  parts.accessLog.end(entry);
  endCall(code);
}

/** The steps before the handler, then the handler. */
async function admitted(
  parts: GrpcParts,
  method: DescMethod,
  call: GrpcCall,
  headers: Map<string, string>,
  entry: AccessEntry,
): Promise<{ caller: Caller; credential: string | undefined; namespace: string | undefined }> {
  const { metadata } = call;
  const credential = credentialOf(metadataText(metadata, 'authorization'), metadataText(metadata, 'x-api-key'));
  const namespace = metadataText(metadata, namespaceHeader);
  const caller = await parts.admission.admit(accessOf(method), credential, entry.address, headers, namespace, entry);
  return { caller, credential, namespace };
}

const contextOf = (call: GrpcCall, caller: Caller, address: string, headers: Map<string, string>): GrpcContext =>
  new GrpcContext(call, {
    caller,
    requestId: headers.get('x-request-id')!,
    address,
    metadata: requestMetadata(metadataEntries(call.metadata)),
    responseMetadata: headers,
  });

async function answerUnary(
  parts: GrpcParts,
  method: DescMethod,
  call: UnaryCall,
  done: sendUnaryData<Message>,
): Promise<void> {
  const requestId = grpcRequestId(call.metadata);
  const headers = new Map([['x-request-id', requestId]]);
  const entry = beginEntry(parts, method, call, requestId);
  let context: GrpcContext | undefined;
  try {
    const { caller } = await admitted(parts, method, call, headers, entry);
    checkRequest(method, call.request);
    await parts.admission.admitDevice(accessOf(method), method, call.request, caller);
    context = contextOf(call, caller, entry.address, headers);
    const result = await parts.invoker.unary(method, call.request, context);
    call.sendMetadata(toMetadata(headers));
    done(null, result);
    observe(parts, method, entry, 'OK');
  } catch (thrown) {
    const status = toStatus(thrown, headers, parts.logger);
    done(status);
    observe(parts, method, entry, status.error.code);
  } finally {
    // grpc-js says nothing when a unary answer has left; it writes it in this turn of the event loop.
    setImmediate(() => context?.finish());
  }
}

async function answerStream(
  parts: GrpcParts,
  method: DescMethod,
  call: StreamCall,
  done: sendUnaryData<Message> | undefined,
): Promise<void> {
  const requestId = grpcRequestId(call.metadata);
  const headers = new Map([['x-request-id', requestId]]);
  const entry = beginEntry(parts, method, call, requestId);
  let stopWatching: () => void = () => undefined;
  let context: GrpcContext | undefined;
  try {
    const { caller, credential, namespace } = await admitted(parts, method, call, headers, entry);
    const opened = (context = contextOf(call, caller, entry.address, headers));
    const ended = new Promise<never>((_resolve, reject) => {
      const end = (error: Error): void => {
        opened.abort();
        reject(error);
      };
      const stop = (): void => end(unavailable('the server is stopping'));
      parts.stopping.addEventListener('abort', stop);
      const unwatch =
        credential === undefined
          ? undefined
          : parts.authenticator.watch({
              credential,
              caller,
              address: opened.address,
              use: { namespace: namespace ?? '', permission: accessOf(method).kubernetesPermission },
              refusalOf: (now) => authorize(accessOf(method), now, opened.address),
              end,
            });
      stopWatching = () => {
        unwatch?.();
        parts.stopping.removeEventListener('abort', stop);
      };
    });
    await Promise.race([run(parts, method, call, done, opened), ended]);
    observe(parts, method, entry, 'OK');
  } catch (thrown) {
    const status = toStatus(thrown, headers, parts.logger);
    if (done) done(status);
    else call.emit('error', status);
    observe(parts, method, entry, status.error.code);
  } finally {
    stopWatching();
    context?.finish();
  }
}

async function run(
  parts: GrpcParts,
  method: DescMethod,
  call: StreamCall,
  done: sendUnaryData<Message> | undefined,
  context: CallContext,
): Promise<void> {
  const handler = parts.invoker.stream(method);
  const requests = 'request' in call ? call.request : checkedRequests(method, call);
  if ('request' in call) checkRequest(method, call.request);
  const result = handler(requests, context);
  if (done) {
    const answer = create(method.output, await (result as Promise<Message>));
    call.sendMetadata(toMetadata(context.responseMetadata));
    done(null, answer);
    return;
  }
  const writable = call as ServerWritableStream<Message, Message>;
  await writeAnswers(writable, method.output, result as AsyncIterable<Message>, context);
}

async function* checkedRequests(method: DescMethod, call: Readable): AsyncIterable<Message> {
  // Leaving an ordinary loop over a stream destroys it, and with it the answer that is still to come.
  for await (const message of call.iterator({ destroyOnReturn: false }) as AsyncIterable<Message>) {
    checkRequest(method, message);
    yield message;
  }
}

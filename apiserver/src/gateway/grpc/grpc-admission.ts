// A gRPC call from its metadata to its status. Who calls, and whether they may, is decided before a byte of a message is asked
// for; what becomes of the call is counted, logged and traced once, whoever says it: the handler, grpc-js, or a client that goes.
import type { ServerHttp2Stream } from 'node:http2';
import type { DescMethod, DescService } from '@bufbuild/protobuf';
import {
  ServerInterceptingCall,
  status,
  type Metadata,
  type ServerInterceptingCallInterface,
  type ServerInterceptor,
} from '@grpc/grpc-js';
import { codeNames, KelletError, unavailable } from '../../platform/errors.ts';
import { metadataText, type GrpcCall } from '../../platform/grpc/grpc-context.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { publicCaller, type Caller } from '../../platform/rpc.ts';
import { inTrace, type Trace } from '../../platform/observability/tracing.ts';
import type { AccessEntry, AccessLog } from '../observability/access-log.ts';
import type { Admission } from '../admission/admission.ts';
import { credentialOf } from '../admission/authenticate.ts';
import type { CallMetrics } from '../observability/call-metrics.ts';
import { endCall, traceCall } from '../observability/call-trace.ts';
import { isPublic } from '../admission/authorize.ts';
import { strangerBodyBytes, type BodyMemory } from '../http/body-memory.ts';
import type { AddressOf } from '../admission/client-address.ts';
import { timeoutForm } from '../http/deadline.ts';
import { addressOfCall, grpcRequestId, maximumMessageBytes, statusOf, toStatus } from './grpc-call.ts';
import type { Hold } from '../http/memory-budget.ts';
import { namespaceHeader } from '../http/metadata.ts';
import { accessOf } from '../transcoding/routes.ts';

const tooLarge = (bytes: number): string => `the message must not be larger than ${bytes} bytes`;

type MetadataListener = (metadata: Metadata, proceed: (metadata: Metadata) => void) => void;
type Outcome = Parameters<ServerInterceptingCall['sendStatus']>[0];

/** What the admission of gRPC calls is made of. */
export interface GrpcAdmissionParts {
  readonly services: readonly DescService[];
  readonly admission: Admission;
  readonly metrics: CallMetrics;
  readonly logger: Logger;
  readonly addressOf: AddressOf;
  readonly accessLog: AccessLog;
  readonly memory: BodyMemory;
}

/** A call that runs: what is known of it from its metadata. */
export class RunningCall {
  /** Who calls; nobody until the call is admitted. */
  caller: Caller = publicCaller;
  readonly credential: string | undefined;
  /** Where a Kubernetes token is used. */
  readonly namespace: string | undefined;
  readonly trace: Trace;
  readonly entry: AccessEntry;
  /** The answer's metadata: the request id, and the rate limit's once the call is counted. */
  readonly headers: Map<string, string>;
  private readonly method: DescMethod;
  private readonly parts: GrpcAdmissionParts;
  /** Its status, once it is over. */
  private code: status | undefined;
  private readonly afterwards: ((code: status) => void)[] = [];

  constructor(parts: GrpcAdmissionParts, method: DescMethod, metadata: Metadata, peer: string) {
    this.parts = parts;
    this.method = method;
    this.credential = credentialOf(metadataText(metadata, 'authorization'), metadataText(metadata, 'x-api-key'));
    this.namespace = metadataText(metadata, namespaceHeader);
    this.trace = traceCall(method, metadata);
    const requestId = grpcRequestId(metadata);
    this.trace.requestId = requestId;
    this.headers = new Map([['x-request-id', requestId]]);
    const { accessLog } = parts;
    this.entry = accessLog.begin('grpc', '', requestId, accessLog.isOn ? this.trace.traceparent : undefined);
    this.entry.route = `${method.parent.typeName}/${method.name}`;
    this.entry.address = addressOfCall(parts.addressOf, peer, metadata);
  }

  /** Lets the call in. Throws as Admission.admit does. */
  async admit(): Promise<void> {
    const { method, credential, headers, namespace, entry } = this;
    const access = accessOf(method);
    this.caller = await this.parts.admission.admit(access, credential, entry.address, headers, namespace, entry);
  }

  /** Runs once the call has its status, or its client is gone (CANCELLED). */
  whenOver(run: (code: status) => void): void {
    if (this.code === undefined) this.afterwards.push(run);
    else run(this.code);
  }

  /** The call is over; what comes afterwards is not heard. */
  end(code: status): void {
    if (this.code !== undefined) return;
    this.code = code;
    const { entry, method, parts } = this;
    const name = code === status.OK ? 'OK' : (codeNames.get(code) ?? 'UNKNOWN');
    parts.metrics.observe(method, 'grpc', name, entry.started);
    entry.code = name;
    entry.status = code;
    parts.accessLog.end(entry);
    endCall(this.trace, name);
    for (const run of this.afterwards) run(code);
  }
}

/** Admits the calls of the contract's methods; those of other services (health, reflection) pass. */
export class GrpcAdmission {
  private readonly parts: GrpcAdmissionParts;
  private readonly methods: ReadonlyMap<string, DescMethod>;
  /** By their metadata, which is what a handler gets of what an interceptor has had. */
  private readonly calls = new WeakMap<Metadata, RunningCall>();

  constructor(parts: GrpcAdmissionParts) {
    this.parts = parts;
    this.methods = new Map(
      parts.services.flatMap((service) =>
        service.methods.map((method) => [`/${service.typeName}/${method.name}`, method] as const),
      ),
    );
  }

  /** Stands next to the wire: before it there is only grpc-js. */
  readonly interceptor: ServerInterceptor = ({ path, requestStream }, call) => {
    const method = this.methods.get(path);
    if (!method) return new ServerInterceptingCall(call);
    const isOpen = isPublic(accessOf(method));
    if (isOpen) limitMessage(call, strangerBodyBytes);
    let running: RunningCall | undefined;
    let hold: Hold | undefined;
    let isAdmitted = false;
    let isWhole = false;
    let hasStatus = false;
    let isFromWithin = false;
    const sendStatus = call.sendStatus.bind(call);
    const sendMessage = call.sendMessage.bind(call);
    // What a handler has written before it hears of the status must not follow it: that would reset the stream, status and all.
    call.sendMessage = (message, sent) => {
      if (!hasStatus) sendMessage(message, sent);
    };
    // Not all statuses come through interceptors: grpc-js itself ends calls whose deadline has passed or whose message is too
    // large, and does it by this method.
    call.sendStatus = (outcome) => {
      if (!running) return sendStatus(outcome);
      // A message that cannot be written is a fault of ours to grpc-js, also where the client is gone.
      const isGone = isLeft(call);
      hasStatus = true;
      const said =
        isFromWithin || outcome.metadata ? outcome : foundFailure(outcome, running.headers, isAdmitted, isOpen);
      sendStatus(completed(said, running.headers));
      running.end(isGone ? status.CANCELLED : said.code);
    };
    const onReceiveMetadata: MetadataListener = (metadata, proceed) => {
      const opened = (running = new RunningCall(this.parts, method, metadata, call.getPeer()));
      this.calls.set(metadata, opened);
      inTrace(opened.trace, () => {
        opened.admit().then(
          // A call that was cancelled meanwhile goes no further.
          () => {
            isAdmitted = true;
            if (isOpen) hold = this.holdMessage(call, opened);
            proceed(metadata);
          },
          (thrown: unknown) => call.sendStatus(toStatus(thrown, opened.headers, this.parts.logger)),
        );
      });
    };
    return new ServerInterceptingCall(call, {
      start: (next) =>
        next({
          onReceiveMetadata,
          onReceiveMessage: (message, proceed) => {
            isWhole = !requestStream;
            hold?.release();
            proceed(message);
          },
          // A stream that its client has reset ends first, and is closed within this turn of the event loop: no handler is to
          // take that for the end of what the client had to say.
          onReceiveHalfClose: (proceed) => (isWhole ? proceed() : void setImmediate(proceed)),
          onCancel: () => running?.end(status.CANCELLED),
        }),
      sendStatus: (outcome, next) => {
        isFromWithin = true;
        next(outcome);
      },
    });
  };

  /** The message of a caller without a credential counts, at its greatest, until it has come. */
  private holdMessage(call: ServerInterceptingCallInterface, running: RunningCall): Hold {
    const crowded = unavailable('too many bodies are being received: try again');
    const hold = this.parts.memory.holdStranger(running.entry.address, () =>
      call.sendStatus(toStatus(crowded, running.headers, this.parts.logger)),
    );
    running.whenOver(() => hold.release());
    return hold;
  }

  /** What is known of the call that a handler has got. */
  of(call: GrpcCall): RunningCall {
    const running = this.calls.get(call.metadata);
    if (!running) throw new Error('a call that was not admitted');
    return running;
  }
}

/** Whether the client has ended the call's stream, or lost it; grpc-js looks at the same and does not say. */
function isLeft(call: ServerInterceptingCallInterface & { readonly stream?: ServerHttp2Stream }): boolean {
  return call.stream !== undefined && (call.stream.destroyed || call.stream.closed);
}

/** Lowers the greatest message of a call below the port's. grpc-js has a setting for the whole port only. */
function limitMessage(
  call: ServerInterceptingCallInterface & {
    maxReceiveMessageSize?: number;
    decoder?: { maxReadMessageLength: number };
  },
  bytes: number,
): void {
  call.maxReceiveMessageSize = bytes;
  if (call.decoder) call.decoder.maxReadMessageLength = bytes;
}

/** What grpc-js itself has found wrong with a call, by the codes of the contract; may add to the answer's metadata. */
function foundFailure(
  { code, details }: Outcome,
  headers: Map<string, string>,
  isAdmitted: boolean,
  isOpen: boolean,
): Outcome {
  // Not a limit of the tenant, after which the same call may succeed.
  if (code === status.RESOURCE_EXHAUSTED) {
    return { code: status.INVALID_ARGUMENT, details: tooLarge(isOpen ? strangerBodyBytes : maximumMessageBytes) };
  }
  // Before anything of a message is read, it is the deadline that has no form.
  if (code === status.INTERNAL && !isAdmitted) return { code: status.INVALID_ARGUMENT, details: timeoutForm };
  // A message is compressed in a way that it does not know.
  if (code === status.UNIMPLEMENTED) headers.set('grpc-accept-encoding', 'identity,deflate,gzip');
  return { code, details };
}

/** A failure that grpc-js has found says as much of the call as one of ours. */
function completed(outcome: Outcome, headers: ReadonlyMap<string, string>): Outcome {
  const code = codeNames.get(outcome.code);
  if (code === undefined || outcome.metadata) return outcome;
  return statusOf(new KelletError(code, outcome.details), headers);
}

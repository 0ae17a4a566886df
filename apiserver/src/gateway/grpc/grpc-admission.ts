// Admission and accounting of gRPC calls, from metadata to status. Callers are authenticated and authorised before any
// message is read. The outcome is counted, logged and traced once, whether it comes from the handler, grpc-js or the
// client.
import { constants } from 'node:http2';
import type { DescMethod, DescService } from '@bufbuild/protobuf';
import { type Metadata, ServerInterceptingCall, type ServerInterceptor, status } from '@grpc/grpc-js';
import type { Credential } from '../../auth/credentials/device-proof.ts';
import { codeNames, KelletError, unavailable } from '../../platform/errors.ts';
import { type GrpcCall, metadataEntries, metadataText } from '../../platform/grpc/grpc-context.ts';
import { defaultGrpcLimits, type GrpcLimits } from '../../platform/grpc/grpc-port.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { inTrace, type Trace } from '../../platform/observability/tracing.ts';
import { RequestBytes } from '../../platform/request-bytes.ts';
import { type Caller, publicCaller } from '../../platform/rpc.ts';
import type { Admission } from '../admission/admission-steps.ts';
import { credentialOf } from '../admission/authenticate.ts';
import { isPublic } from '../admission/authorize.ts';
import type { AddressOf } from '../admission/client-address.ts';
import type { ProofOf } from '../admission/connection-proof.ts';
import { timeoutForm } from '../http/deadline.ts';
import { namespaceHeader } from '../http/metadata.ts';
import { type BodyMemory, probeMessageBytes, strangerBodyBytes } from '../memory/body-memory.ts';
import type { Hold } from '../memory/memory-budget.ts';
import type { AccessEntry, AccessLog } from '../observability/access-log.ts';
import type { CallMetrics } from '../observability/call-metrics.ts';
import { endCall, traceCall } from '../observability/call-trace.ts';
import { accessOf } from '../transcoding/routes.ts';
import { CallAllowances } from './call-allowance.ts';
import { addressOfCall, grpcRequestId, maximumMessageBytes, statusOf, toStatus } from './grpc-call.ts';
import { OpenCalls } from './open-calls.ts';
import {
  acceptedEncodings,
  discardRequest,
  endAnswered,
  isLeft,
  isTruncated,
  limitMessage,
  readInParts,
  refuseCompressed,
  socketOf,
  type WireCall,
} from './wire-call.ts';

const tooLarge = (bytes: number): string => `the message must not be larger than ${bytes} bytes`;

/** What arrives in one frame is not counted. */
const uncountedBytes = 16 * 1024;

/** What a call takes that is kept for its request: its stream and the most metadata that it may have. */
const openCallBytes = 32 * 1024;

/** Most calls have much less metadata. Those with more count as memory as long as they are open. */
const muchMetadata = 4 * 1024;

/** Time to read why a call has ended whose place others need. */
const lastMilliseconds = 1000;

/** How the stream of a client ends that does not read: RESOURCE_EXHAUSTED for a gRPC client. */
const tooSlow = constants.NGHTTP2_ENHANCE_YOUR_CALM;

type MetadataListener = (metadata: Metadata, proceed: (metadata: Metadata) => void) => void;
type Outcome = Parameters<ServerInterceptingCall['sendStatus']>[0];

/** Dependencies of the admission of gRPC calls. */
export interface GrpcAdmissionParts {
  readonly services: readonly DescService[];
  readonly admission: Admission;
  readonly metrics: CallMetrics;
  readonly logger: Logger;
  readonly addressOf: AddressOf;
  readonly proofOf: ProofOf;
  readonly accessLog: AccessLog;
  readonly memory: BodyMemory;
  readonly limits: Partial<GrpcLimits>;
  /** Reports whether a peer is a trusted proxy. */
  readonly isProxy: (address: string) => boolean;
}

/** A method and its full name. */
interface AdmittedMethod {
  readonly method: DescMethod;
  readonly route: string;
}

/** A running call, as far as its metadata describes it. */
export class RunningCall {
  /** The caller; public until the call is admitted. */
  caller: Caller = publicCaller;
  readonly credential: Credential | undefined;
  /** Where a Kubernetes token is used. */
  readonly namespace: string | undefined;
  readonly trace: Trace;
  readonly entry: AccessEntry;
  /** Response metadata: the request id and, once the call is counted, the rate limit. */
  readonly headers: Map<string, string>;
  readonly method: DescMethod;
  private readonly parts: GrpcAdmissionParts;
  /** Status of the call once it is over. */
  private code: status | undefined;
  private afterwards: readonly ((code: status) => void)[] = [];
  private readonly messages: (Hold | undefined)[] = [];

  constructor(parts: GrpcAdmissionParts, { method, route }: AdmittedMethod, metadata: Metadata, call: WireCall) {
    this.parts = parts;
    this.method = method;
    this.credential =
      credentialOf(metadataText(metadata, 'authorization'), metadataText(metadata, 'x-api-key')) ??
      parts.proofOf(socketOf(call), (name) => metadata.get(name).map(String).join(',') || undefined);
    this.namespace = metadataText(metadata, namespaceHeader);
    this.trace = traceCall(method, metadata);
    const requestId = grpcRequestId(metadata);
    this.trace.requestId = requestId;
    this.headers = new Map([['x-request-id', requestId]]);
    const { accessLog } = parts;
    this.entry = accessLog.begin('grpc', '', requestId, accessLog.isOn ? this.trace.traceparent : undefined);
    this.entry.route = route;
    this.entry.method = method;
    this.entry.userAgent = metadataText(metadata, 'user-agent') ?? '';
    this.entry.address = addressOfCall(parts.addressOf, call.getPeer(), metadata);
  }

  /** Admits the call. Throws as Admission.admit does. */
  async admit(): Promise<void> {
    const { method, credential, headers, namespace, entry } = this;
    const access = accessOf(method);
    this.caller = await this.parts.admission.admit(access, credential, entry.address, headers, namespace, entry);
  }

  /** Looks the caller up again if the request took a while to arrive. Throws as Admission.readmit does. */
  async readmit(): Promise<void> {
    this.caller = await this.parts.admission.readmit(accessOf(this.method), this.caller, this, this.entry);
  }

  /** Adds the hold of a message that has arrived: its memory, or undefined if it is too small to count. */
  keepMessage(hold: Hold | undefined): void {
    if (this.code === undefined) this.messages.push(hold);
    else hold?.release();
  }

  /** Releases the hold of the oldest message, which the handler takes. */
  takeMessage(): void {
    this.messages.shift()?.release();
  }

  /** Whether the call has a status or its client has disconnected. */
  get isOver(): boolean {
    return this.code !== undefined;
  }

  /** Calls `run` once the call has a status or its client has disconnected (CANCELLED). */
  whenOver(run: (code: status) => void): void {
    // As long as what is in it, because a call may stay open: an array that grows by `push` has room for 17.
    if (this.code === undefined) this.afterwards = [...this.afterwards, run];
    else run(this.code);
  }

  /** Ends the call. Later calls have no effect. */
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
    for (const hold of this.messages.splice(0)) hold?.release();
  }
}

/** Admits calls of the contract's methods; those of other services (health, reflection) need no credential. */
export class GrpcAdmission {
  private readonly parts: GrpcAdmissionParts;
  /** By path. */
  private readonly methods: ReadonlyMap<string, AdmittedMethod>;
  /** Running calls by their metadata, the only object that interceptors and handlers share. */
  private readonly calls = new WeakMap<Metadata, RunningCall>();
  private readonly open: OpenCalls;
  private readonly allowances: CallAllowances;

  constructor(parts: GrpcAdmissionParts) {
    this.parts = parts;
    this.open = new OpenCalls(parts.limits.connections ?? defaultGrpcLimits.connections);
    this.allowances = new CallAllowances(parts.isProxy);
    this.methods = new Map(
      parts.services.flatMap((service) =>
        service.methods.map((method) => {
          const route = `${service.typeName}/${method.name}`;
          return [`/${route}`, { method, route }] as const;
        }),
      ),
    );
  }

  /** Must be the interceptor closest to the wire, next to grpc-js. */
  readonly interceptor: ServerInterceptor = ({ path, requestStream, responseStream }, call) => {
    const admitted = this.methods.get(path);
    if (!admitted) return this.limitProbe(call);
    const isOpen = isPublic(accessOf(admitted.method));
    if (isOpen) limitMessage(call, strangerBodyBytes);
    refuseCompressed(call);
    let running: RunningCall | undefined;
    let hold: Hold | undefined;
    let arrived: ((message: unknown) => void) | undefined;
    let isAdmitted = false;
    let isWhole = false;
    let hasStatus = false;
    let isFromWithin = false;
    let isOver: (() => void) | undefined;
    let isAnswered = false;
    const answer = (): void => {
      if (isAnswered) return;
      isAnswered = true;
      isOver?.();
      this.endUnread(call);
    };
    const sendStatus = call.sendStatus.bind(call);
    const sendMessage = call.sendMessage.bind(call);
    // Messages that the handler writes before it receives the status must not follow it: that would reset the stream and lose
    // the status.
    const countUnread = this.unreadCounter(call, () => running);
    call.sendMessage = (message, sent) => {
      if (hasStatus) return;
      sendMessage(message, () => {
        countUnread();
        sent();
      });
      countUnread();
      // Its status follows once the client has read it.
      if (!responseStream) answer();
    };
    // Some statuses bypass interceptors: grpc-js itself ends calls whose deadline has passed or whose message is too
    // large, through this method.
    call.sendStatus = (outcome) => {
      if (!running) return sendStatus(outcome);
      // grpc-js reports a message that cannot be written as an internal error, even if the client has disconnected.
      const isGone = isLeft(call);
      hasStatus = true;
      const said =
        isFromWithin || outcome.metadata ? outcome : foundFailure(outcome, running.headers, isAdmitted, isOpen);
      sendStatus(completed(said, running.headers));
      answer();
      running.end(isGone ? status.CANCELLED : said.code);
    };
    const onReceiveMetadata: MetadataListener = (metadata, proceed) => {
      // Reset by its client before it could begin.
      if (isLeft(call)) return;
      const opened = (running = new RunningCall(this.parts, admitted, metadata, call));
      this.calls.set(metadata, opened);
      inTrace(opened.trace, () => {
        const entering = opened.admit().then(() => {
          if (!isOpen) isOver = this.enterOpen(call, opened, metadata);
        });
        entering.then(
          // Calls cancelled in the meantime stop here.
          () => {
            isAdmitted = true;
            let taken: ((bytes: number) => void) | undefined;
            if (!requestStream) hold = this.holdRequest(call, opened);
            if (!isOpen) {
              opened.whenOver(this.allowances.enter(call, opened.caller.tenantId));
              ({ taken, arrived } = this.messageCounter(call, opened));
            }
            readInParts(call, taken);
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
            arrived?.(message);
            proceed(message);
          },
          // A stream reset by the client ends first and is closed within this turn of the event loop: handlers must not
          // take that for the end of the requests.
          onReceiveHalfClose: (proceed) => {
            hold?.release();
            if (isWhole) return proceed();
            setImmediate(() => {
              if (!isTruncated(call) || isLeft(call)) return proceed();
              call.sendStatus({ code: status.INVALID_ARGUMENT, details: 'the last message is truncated' });
            });
          },
          onCancel: () => running?.end(status.CANCELLED),
        }),
      sendStatus: (outcome, next) => {
        isFromWithin = true;
        next(outcome);
      },
    });
  };

  /** Limits the message size of a call of health or reflection, and how many of them an address may have running. */
  private limitProbe(call: WireCall): ServerInterceptingCall {
    limitMessage(call, probeMessageBytes);
    refuseCompressed(call);
    readInParts(call);
    let hasStatus = false;
    const sendStatus = call.sendStatus.bind(call);
    const sendMessage = call.sendMessage.bind(call);
    call.sendMessage = (message, sent) => {
      if (!hasStatus) sendMessage(message, sent);
    };
    call.sendStatus = (outcome) => {
      hasStatus = true;
      sendStatus(outcome);
      this.endUnread(call);
    };
    // A client that does not read would otherwise keep it, with the requests that have arrived and their responses.
    const evict = (): void => {
      if (!hasStatus)
        call.sendStatus({ code: status.UNAVAILABLE, details: 'too many health and reflection calls: try again' });
      discardRequest(call);
    };
    const onReceiveMetadata: MetadataListener = (metadata, proceed) => {
      // Reset by its client before it could begin.
      if (isLeft(call)) return;
      const address = addressOfCall(this.parts.addressOf, call.getPeer(), metadata);
      const hold = this.parts.memory.holdProbe(address, evict);
      call.stream?.once('close', () => hold.release());
      proceed(metadata);
    };
    return new ServerInterceptingCall(call, { start: (next) => next({ onReceiveMetadata }) });
  }

  /**
   * Counts a call until its stream is closed, and returns what is to be called when it is answered. Throws as OpenCalls.enter does.
   */
  private enterOpen(call: WireCall, running: RunningCall, metadata: Metadata): () => void {
    const { caller, headers, method } = running;
    const end = (): void => {
      if (!running.isOver) call.sendStatus(toStatus(tooManyOpen(), headers, this.parts.logger));
      // It is counted no longer, so it must not wait for its client.
      setTimeout(() => call.stream?.close(tooSlow), lastMilliseconds).unref();
    };
    const { isOver, leave } = this.open.enter(caller, { isStream: method.methodKind !== 'unary', end });
    running.whenOver(isOver);
    if (!call.stream || isLeft(call)) leave();
    else {
      call.stream.once('close', leave);
      if (bytesOf(metadata) > muchMetadata) {
        const hold = this.parts.memory.holdCaller(caller.tenantId, end);
        call.stream.once('close', () => hold.release());
        hold.set(openCallBytes);
      }
    }
    return isOver;
  }

  /**
   * Reserves memory for a call until its request has arrived as a whole, which may take a minute: the maximum message size for a caller
   * without a credential, and what the call itself takes for others. The oldest ones are rejected when memory runs short.
   */
  private holdRequest(call: WireCall, running: RunningCall): Hold {
    const { memory, logger } = this.parts;
    const { caller, entry, headers } = running;
    const evict = (): void => call.sendStatus(toStatus(crowded(), headers, logger));
    const isStranger = caller.kind === 'public';
    const hold = isStranger ? memory.holdStranger(entry.address, evict) : memory.holdCaller(caller.tenantId, evict);
    if (!isStranger) hold.set(openCallBytes);
    running.whenOver(() => hold.release());
    return hold;
  }

  /**
   * Returns what counts the bytes of a caller's messages until the handler takes them: `taken` is to be called with bytes that have
   * arrived, `arrived` with a message that has. The oldest ones are rejected when memory runs short.
   */
  private messageCounter(
    call: WireCall,
    running: RunningCall,
  ): { taken: (bytes: number) => void; arrived: (message: unknown) => void } {
    let hold: Hold | undefined;
    let held = 0;
    let waiting: unknown;
    const release = (): void => {
      held = 0;
      hold?.release();
      hold = undefined;
    };
    const evict = (): void => {
      call.sendStatus(toStatus(crowded(), running.headers, this.parts.logger));
      discardRequest(call);
      if (waiting instanceof RequestBytes) waiting.take();
    };
    running.whenOver(release);
    return {
      taken: (bytes) => {
        held += bytes;
        if (held <= uncountedBytes) return;
        hold ??= this.parts.memory.holdCaller(running.caller.tenantId, evict);
        hold.set(held);
      },
      arrived: (message) => {
        waiting = message;
        running.keepMessage(hold);
        held = 0;
        hold = undefined;
      },
    };
  }

  /**
   * Returns a function that counts what the client has not read of its responses. The slowest readers lose theirs when memory
   * runs short.
   */
  private unreadCounter({ stream }: WireCall, running: () => RunningCall | undefined): () => void {
    let hold: Hold | undefined;
    const count = (): void => {
      const bytes = stream && !stream.destroyed ? stream.writableLength : 0;
      if (bytes > uncountedBytes) {
        hold ??= this.parts.memory.holdReplies(running()?.caller.tenantId ?? '', () => stream?.close(tooSlow));
        hold.set(bytes);
      } else {
        hold?.release();
        hold = undefined;
      }
    };
    stream?.once('close', count);
    return count;
  }

  /** Ends the stream of a call that is answered once its client has read the response, or has not in time. */
  private endUnread(call: WireCall): void {
    const { stream } = call;
    if (!stream || stream.destroyed) return;
    const { responseTimeout = defaultGrpcLimits.responseTimeout } = this.parts.limits;
    const late = setTimeout(() => stream.close(tooSlow), responseTimeout);
    late.unref();
    stream.once('close', () => clearTimeout(late));
    endAnswered(call);
  }

  /** Returns the running call of a handler's call. */
  of(call: GrpcCall): RunningCall {
    const running = this.calls.get(call.metadata);
    if (!running) throw new Error('the call was not admitted');
    return running;
  }
}

const bytesOf = (metadata: Metadata): number =>
  metadataEntries(metadata).reduce((sum, [name, value]) => sum + name.length + value.length, 0);

/** The error for a call whose message took memory that others need. */
export const crowded = (): KelletError => unavailable('too many bodies are being received: try again');

/** The error for a call whose place others need. */
const tooManyOpen = (): KelletError => unavailable('too many calls are open: try again');

/** Maps failures detected by grpc-js to the contract's codes. May add response metadata. */
function foundFailure(
  { code, details }: Outcome,
  headers: Map<string, string>,
  isAdmitted: boolean,
  isOpen: boolean,
): Outcome {
  // Not the tenant's rate limit: retrying does not help.
  if (code === status.RESOURCE_EXHAUSTED) {
    return { code: status.INVALID_ARGUMENT, details: tooLarge(isOpen ? strangerBodyBytes : maximumMessageBytes) };
  }
  // Before a message is read, the only possible cause is a malformed deadline.
  if (code === status.INTERNAL && !isAdmitted) return { code: status.INVALID_ARGUMENT, details: timeoutForm };
  // The message is compressed.
  if (code === status.UNIMPLEMENTED) headers.set(acceptedEncodings, 'identity');
  return { code, details };
}

/** Completes a failure detected by grpc-js with the details that our own errors carry. */
function completed(outcome: Outcome, headers: ReadonlyMap<string, string>): Outcome {
  const code = codeNames.get(outcome.code);
  if (code === undefined || outcome.metadata) return outcome;
  return statusOf(new KelletError(code, outcome.details), headers);
}

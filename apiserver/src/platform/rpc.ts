// The shape of a call inside the data plane: who calls, what a handler looks like, and the registry that finds it.
// The gateway builds a CallContext from a REST or gRPC request; services see nothing of the transport.
import { create, type DescMessage, type DescMethod, type DescService } from '@bufbuild/protobuf';
import type { MessageInitShape, MessageShape } from '@bufbuild/protobuf';
import type {
  DescMethodBiDiStreaming,
  DescMethodClientStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
} from '@bufbuild/protobuf';
import { KelletError } from './errors.ts';

/** The kind of credential behind a call. */
export type CallerKind = 'public' | 'user' | 'service' | 'device' | 'platform' | 'kubernetes';

/** Who calls, as the credential says: never from a field of the request (SPEC, Authentication, rule 4). */
export interface Caller {
  readonly kind: CallerKind;
  /** Empty for a public call, for the platform administrator, and for a Kubernetes identity without a right in the tenant. */
  readonly tenantId: string;
  /** The user, or the service key's id for a service; empty otherwise. */
  readonly userId: string;
  /** The device, for a device key; empty otherwise. */
  readonly deviceId: string;
  /** What the audit trail calls the caller: an e-mail address, a key's name, a device id, a Kubernetes user. */
  readonly name: string;
  /** Of a Kubernetes identity: the permission granted for this call. */
  readonly scopes: ReadonlySet<string>;
  /** Hex SHA-256 of the credential; empty for a public call. Idempotency rows and revocation are keyed by it. */
  readonly credentialHash: string;
  /** The session of an access token; empty otherwise. */
  readonly sessionId: string;
  /** CIDRs from which the credential may be used; empty: any. */
  readonly ipAllowlist: readonly string[];
  /** Seconds since 1970 at which the credential ends; 0: never. */
  readonly expiresAt: number;
  /** Under which id the cluster's audit log knows the issue of a Kubernetes token; absent otherwise. */
  readonly credentialId?: string;
}

/** The caller of a route that needs no credential. */
export const publicCaller: Caller = {
  kind: 'public',
  tenantId: '',
  userId: '',
  deviceId: '',
  name: '',
  scopes: new Set(),
  credentialHash: '',
  sessionId: '',
  ipAllowlist: [],
  expiresAt: 0,
};

/** Everything a handler may know of the call besides its request. */
export interface CallContext {
  readonly caller: Caller;
  /** caller.tenantId; the tenant every query of the handler is scoped to. */
  readonly tenantId: string;
  readonly requestId: string;
  /** Address of the peer. */
  readonly address: string;
  /** Aborts when the client goes away or the deadline passes. */
  readonly signal: AbortSignal;
  /** Milliseconds since 1970 after which nobody waits for the answer; undefined: the client named none. */
  readonly deadline?: number | undefined;
  /** Request headers or metadata, lower-case names; credentials and `x-tenant-id` kin are not among them. */
  readonly metadata: ReadonlyMap<string, string>;
  /** Headers (REST) or initial metadata (gRPC) of the response; what a stream sets after its first message becomes trailers. */
  readonly responseMetadata: Map<string, string>;
  /** Runs once the response has been written to the client (or the connection has died). */
  afterResponse(run: () => void): void;
}

/** A context for calls that the data plane makes on its own behalf, and for tests. */
export function internalContext(caller: Caller, overrides: Partial<CallContext> = {}): CallContext {
  return {
    caller,
    tenantId: caller.tenantId,
    requestId: 'internal',
    address: '127.0.0.1',
    signal: new AbortController().signal,
    metadata: new Map(),
    responseMetadata: new Map(),
    afterResponse: (run) => run(),
    ...overrides,
  };
}

/** The handler of one method; what it may answer is anything `create` takes for the output message. */
export type Handler<M extends DescMethod> =
  M extends DescMethodUnary<infer I, infer O>
    ? (request: MessageShape<I>, context: CallContext) => Promise<MessageInitShape<O>>
    : M extends DescMethodServerStreaming<infer I, infer O>
      ? (request: MessageShape<I>, context: CallContext) => AsyncIterable<MessageInitShape<O>>
      : M extends DescMethodClientStreaming<infer I, infer O>
        ? (requests: AsyncIterable<MessageShape<I>>, context: CallContext) => Promise<MessageInitShape<O>>
        : M extends DescMethodBiDiStreaming<infer I, infer O>
          ? (requests: AsyncIterable<MessageShape<I>>, context: CallContext) => AsyncIterable<MessageInitShape<O>>
          : never;

/** Handlers of a service by local method name; what is missing answers UNIMPLEMENTED. */
export type Implementation<S extends DescService> = { [K in keyof S['method']]?: Handler<S['method'][K]> };

type AnyUnary = (request: MessageShape<DescMessage>, context: CallContext) => Promise<MessageInitShape<DescMessage>>;

/** The handler of a streaming method of any of the three kinds. */
export type StreamHandler = (
  request: MessageShape<DescMessage> | AsyncIterable<MessageShape<DescMessage>>,
  context: CallContext,
) => AsyncIterable<MessageInitShape<DescMessage>> | Promise<MessageInitShape<DescMessage>>;

/** Finds the handler of a method, in this process or in another one, and calls it. */
export interface Invoker {
  /** Throws what the handler throws, UNIMPLEMENTED when there is none, UNAVAILABLE when its process is away. */
  unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>>;
  /** The handler of a streaming method. */
  stream(method: DescMethod): StreamHandler;
}

/** The services of this process. The one place where a method without a handler answers UNIMPLEMENTED. */
export class ServiceRegistry implements Invoker {
  private readonly handlers = new Map<DescMethod, AnyUnary | StreamHandler>();
  private readonly registered = new Set<DescService>();

  /** Takes a service in; a service is registered once, by one or several partial implementations. */
  register<S extends DescService>(service: S, implementation: Implementation<S>): void {
    this.registered.add(service);
    for (const method of service.methods) {
      const handler = implementation[method.localName as keyof S['method']] as AnyUnary | undefined;
      if (handler) this.handlers.set(method, handler);
    }
  }

  /** The services taken in so far. */
  services(): DescService[] {
    return [...this.registered];
  }

  /** Whether a handler of the method is registered. */
  has(method: DescMethod): boolean {
    return this.handlers.has(method);
  }

  /** Calls a unary method in this process. Throws KelletError, UNIMPLEMENTED when there is no handler. */
  async unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>> {
    const handler = this.handler(method) as AnyUnary;
    return create(method.output, await handler(request, context)) as MessageShape<M['output']>;
  }

  /** Calls a streaming method in this process: the handler's own iterable or promise comes back. */
  stream(method: DescMethod): StreamHandler {
    return this.handler(method) as StreamHandler;
  }

  private handler(method: DescMethod): AnyUnary | StreamHandler {
    const handler = this.handlers.get(method);
    if (!handler) throw new KelletError('UNIMPLEMENTED', `${method.parent.typeName}/${method.name} is not implemented`);
    return handler;
  }
}

/**
 * Whether a call of a method waits for what may happen, until somebody ends it or for as long as its caller says: streams of
 * answers, and unary methods with `wait_seconds`. An upload is in progress rather than waiting.
 */
export const isOpenEnded = (method: DescMethod): boolean =>
  method.methodKind === 'unary'
    ? method.input.fields.some((field) => field.name === 'wait_seconds')
    : method.methodKind !== 'client_streaming';

// The model of a call inside the data plane: caller, context, handlers, and the registry that finds them. The gateway
// builds a CallContext from a REST or gRPC request; services do not see the transport.
import {
  create,
  type DescMessage,
  type DescMethod,
  type DescMethodBiDiStreaming,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type DescService,
  type MessageInitShape,
  type MessageShape,
} from '@bufbuild/protobuf';
import { KelletError } from './errors.ts';

/** The kind of credential behind a call. */
export type CallerKind = 'public' | 'user' | 'service' | 'device' | 'platform' | 'kubernetes';

/** Scopes that hold only for the devices of some device groups. */
export interface LimitedGrant {
  readonly scopes: readonly string[];
  readonly deviceGroupIds: readonly string[];
}

/** The caller, as established by the credential, never by a field of the request. */
export interface Caller {
  readonly kind: CallerKind;
  /**
   * Empty for a public call, for the platform administrator, and for a Kubernetes identity without permissions in the
   * tenant.
   */
  readonly tenantId: string;
  /** The user, or the service key's id for a service; empty otherwise. */
  readonly userId: string;
  /** The device, for a device key; empty otherwise. */
  readonly deviceId: string;
  /** The customer to whose devices and entities a user is limited; empty if the caller is not limited. */
  readonly customerId: string;
  /** Name of the caller in the audit trail: an e-mail address, a key's name, a device id or a Kubernetes user. */
  readonly name: string;
  /** For a Kubernetes identity, the permission granted for this call. */
  readonly scopes: ReadonlySet<string>;
  /** What a user holds for some devices only, besides `scopes`. */
  readonly limitedGrants: readonly LimitedGrant[];
  /** Hex SHA-256 of the credential; empty for a public call. Key of revocation. */
  readonly credentialHash: string;
  /** The session of an access token; empty otherwise. */
  readonly sessionId: string;
  /** CIDRs from which the credential may be used; empty for any. */
  readonly ipAllowlist: readonly string[];
  /** Seconds since 1970 at which the credential expires; 0 for never. */
  readonly expiresAt: number;
  /** The id under which the cluster's audit log records the issue of a Kubernetes token; absent otherwise. */
  readonly credentialId?: string;
  /** Whether a user must enroll a second factor before anything else; the scopes are then empty. */
  readonly mustEnroll?: boolean;
  /**
   * Seconds since 1970 at which the sign-in stops being recent enough for methods with Access.step_up; absent if they
   * need none (the caller has no second factor).
   */
  readonly stepUpUntil?: number;
  /**
   * Seconds since 1970 at which the sign-in of a user without a second factor stops being recent enough to enroll one; absent for
   * other callers.
   */
  readonly enrollUntil?: number;
}

/** The caller of a route that needs no credential. */
export const publicCaller: Caller = {
  kind: 'public',
  tenantId: '',
  userId: '',
  deviceId: '',
  customerId: '',
  name: '',
  scopes: new Set(),
  limitedGrants: [],
  credentialHash: '',
  sessionId: '',
  ipAllowlist: [],
  expiresAt: 0,
};

/** Everything a handler may know about a call besides its request. */
export interface CallContext {
  readonly caller: Caller;
  /** caller.tenantId: the tenant that every query of the handler is scoped to. */
  readonly tenantId: string;
  readonly requestId: string;
  /** Address of the peer. */
  readonly address: string;
  /** Aborts when the client disconnects or the deadline passes. */
  readonly signal: AbortSignal;
  /** Deadline in milliseconds since 1970; undefined if the client set none. */
  readonly deadline?: number | undefined;
  /** Request headers or metadata by lower-case name, without credentials, `x-tenant-id` and the like. */
  readonly metadata: ReadonlyMap<string, string>;
  /**
   * Headers (REST) or initial metadata (gRPC) of the response; what a stream sets after its first message becomes
   * trailers.
   */
  readonly responseMetadata: Map<string, string>;
  /** Runs once the response has been written to the client, or the connection has died. */
  afterResponse(run: () => void): void;
}

/** Returns a context for calls that the data plane makes on its own behalf, and for tests. */
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

/** The handler of a method; it may return anything that `create` accepts for the output message. */
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

/** Handlers of a service by local method name; missing ones respond UNIMPLEMENTED. */
export type Implementation<S extends DescService> = { [K in keyof S['method']]?: Handler<S['method'][K]> };

type AnyUnary = (request: MessageShape<DescMessage>, context: CallContext) => Promise<MessageInitShape<DescMessage>>;

/** The handler of a streaming method of any of the three kinds. */
export type StreamHandler = (
  request: MessageShape<DescMessage> | AsyncIterable<MessageShape<DescMessage>>,
  context: CallContext,
) => AsyncIterable<MessageInitShape<DescMessage>> | Promise<MessageInitShape<DescMessage>>;

/** Finds the handler of a method, in this process or another one, and calls it. */
export interface Invoker {
  /** Throws what the handler throws, UNIMPLEMENTED if there is none, and UNAVAILABLE if its process is unavailable. */
  unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>>;
  /** Returns the handler of a streaming method. */
  stream(method: DescMethod): StreamHandler;
}

/** The services of this process. The only place where a method without a handler responds UNIMPLEMENTED. */
export class ServiceRegistry implements Invoker {
  private readonly handlers = new Map<DescMethod, AnyUnary | StreamHandler>();
  private readonly registered = new Set<DescService>();

  /** Registers a service with one or several partial implementations. */
  register<S extends DescService>(service: S, implementation: Implementation<S>): void {
    this.registered.add(service);
    for (const method of service.methods) {
      const handler = implementation[method.localName as keyof S['method']] as AnyUnary | undefined;
      if (handler) this.handlers.set(method, handler);
    }
  }

  /** Returns the services registered so far. */
  services(): DescService[] {
    return [...this.registered];
  }

  /** Reports whether a handler of the method is registered. */
  has(method: DescMethod): boolean {
    return this.handlers.has(method);
  }

  /** Calls a unary method in this process. Throws KelletError, with UNIMPLEMENTED if there is no handler. */
  async unary<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
  ): Promise<MessageShape<M['output']>> {
    const handler = this.handler(method) as AnyUnary;
    return create(method.output, await handler(request, context)) as MessageShape<M['output']>;
  }

  /** Returns the handler of a streaming method in this process; it yields the handler's own iterable or promise. */
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
 * Reports whether a call of a method waits for events until it is ended, or for as long as its caller says: server
 * streams, and unary methods with `wait_seconds`. An upload is in progress rather than waiting.
 */
export const isOpenEnded = (method: DescMethod): boolean =>
  method.methodKind === 'unary'
    ? method.input.fields.some((field) => field.name === 'wait_seconds')
    : method.methodKind !== 'client_streaming';

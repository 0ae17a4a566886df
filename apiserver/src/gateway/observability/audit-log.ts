// Records calls that change something in the audit log: a successful one durably before its response, and attempts that
// failed or were refused soon after, also those to read.
import type { DescMethod, MessageShape } from '@bufbuild/protobuf';
import { Access_Caller } from '@kellet/proto/es/kellet/v1/options_pb';
import { actorOf, type AuditFacts } from '../../platform/audit/audit-event.ts';
import type { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { type ErrorCode, toKelletError } from '../../platform/errors.ts';
import { currentTrace } from '../../platform/observability/tracing.ts';
import type { CallContext, Caller, Invoker } from '../../platform/rpc.ts';
import { accessOf, type RouteTable } from '../transcoding/routes.ts';
import type { AccessEntry } from './access-log.ts';
import { type AuditedMethod, auditedMethods, localName } from './audited-calls.ts';

/** Codes of calls that may have changed something which this process does not know of. */
const unclearOutcomes: ReadonlySet<ErrorCode> = new Set([
  'CANCELLED',
  'DEADLINE_EXCEEDED',
  'UNAVAILABLE',
  'INTERNAL',
  'UNKNOWN',
  'DATA_LOSS',
]);

/** The parts of the trail that the gateway uses. */
export type CallTrail = Pick<AuditTrail, 'mustHaveRoom' | 'record' | 'note' | 'noteOnce'>;

/** Records the calls of one gateway. */
export class AuditLog {
  private readonly trail: CallTrail;
  private readonly methods: ReturnType<typeof auditedMethods>;

  constructor(trail: CallTrail, routes: RouteTable) {
    this.trail = trail;
    this.methods = auditedMethods(routes);
  }

  /** Wraps an invoker so that its calls are recorded. */
  wrap(invoker: Invoker): Invoker {
    return {
      unary: (method, request, context) => {
        const audited = this.auditedOf(method, context.caller);
        if (!audited) return this.read(method, request, context, invoker);
        return this.recorded(new AuditedCall(audited, context, () => request), () =>
          invoker.unary(method, request, context),
        );
      },
      stream: (method) => {
        const handler = invoker.stream(method);
        return (requests, context) => {
          const audited = this.auditedOf(method, context.caller);
          if (!audited) return handler(requests, context);
          this.trail.mustHaveRoom();
          let first: object = {};
          const noted =
            Symbol.asyncIterator in requests ? noteFirst(requests, (request) => (first = request)) : requests;
          const call = new AuditedCall(audited, context, () => first);
          const result = handler(noted, context);
          return Symbol.asyncIterator in result ? this.recordedStream(call, result) : this.recorded(call, () => result);
        };
      },
    };
  }

  /** Records a call that was refused before it was made. `request` is undefined if it was not read. */
  refused(entry: AccessEntry, thrown: unknown, request?: object): void {
    const { method, caller } = entry;
    if (!method || !caller || isRoutine(method, caller)) return;
    const changing = this.methods.changing.get(method);
    const audited = changing ?? this.methods.others.get(method);
    if (!audited) return;
    const { code } = toKelletError(thrown);
    // A missing recent sign-in with the second factor is UNAUTHENTICATED. Exceeding the rate limit is not a denied attempt. A device
    // that a limited caller must not know of is NOT_FOUND.
    const isDenied = code === 'PERMISSION_DENIED' || code === 'UNAUTHENTICATED';
    if (!isDenied && !(changing && code === 'NOT_FOUND')) return;
    const { requestId, address, userAgent } = entry;
    const resource = audited.resourceOf(request ?? fieldsOf(entry.variables), undefined, caller);
    const facts = factsOf(audited.action, caller, { requestId, address, userAgent }, resource, code);
    // A page may ask again and again for what its reader may not see.
    if (changing) this.trail.note(facts);
    else this.trail.noteOnce(facts);
  }

  /** Makes a call that changes nothing, and records it if its handler denies it. */
  private async read<M extends DescMethod>(
    method: M,
    request: MessageShape<M['input']>,
    context: CallContext,
    invoker: Invoker,
  ): Promise<MessageShape<M['output']>> {
    try {
      return await invoker.unary(method, request, context);
    } catch (error) {
      const read = this.methods.others.get(method);
      if (read && toKelletError(error).code === 'PERMISSION_DENIED' && !isRoutine(method, context.caller)) {
        this.trail.noteOnce(new AuditedCall(read, context, () => request).facts('PERMISSION_DENIED'));
      }
      throw error;
    }
  }

  /** Returns how calls of a method are recorded if this caller makes them; never those of devices. */
  private auditedOf(method: DescMethod, caller: Caller): AuditedMethod | undefined {
    return caller.kind === 'device' || caller.kind === 'public' ? undefined : this.methods.changing.get(method);
  }

  private async recorded<T extends object>(call: AuditedCall, run: () => Promise<T>): Promise<T> {
    this.trail.mustHaveRoom();
    let response: T;
    try {
      response = await run();
    } catch (error) {
      this.failed(call, error);
      throw error;
    }
    await this.trail.record(call.facts('OK', response));
    return response;
  }

  private failed(call: AuditedCall, error: unknown): void {
    const { code } = toKelletError(error);
    // A change must not be left out because there are many refused attempts.
    if (call.hasChanged || unclearOutcomes.has(code)) this.trail.record(call.facts(code)).catch(() => undefined);
    else this.trail.note(call.facts(code));
  }

  /** Records a stream before its first response; if it fails later, a second event has the code. */
  private async *recordedStream<T>(call: AuditedCall, responses: AsyncIterable<T>): AsyncGenerator<T> {
    let isRecorded = false;
    try {
      for await (const response of responses) {
        if (!isRecorded) await this.trail.record(call.facts('OK'));
        isRecorded = true;
        yield response;
      }
    } catch (error) {
      this.failed(call, error);
      throw error;
    }
    if (!isRecorded) await this.trail.record(call.facts('OK'));
  }
}

/** Reports whether a call is one that devices make all the time. */
const isRoutine = (method: DescMethod, caller: Caller): boolean =>
  caller.kind === 'device' && accessOf(method).callers.includes(Access_Caller.DEVICE);

/** A call that is being recorded. */
class AuditedCall {
  private readonly audited: AuditedMethod;
  private readonly context: CallContext;
  private readonly request: () => object;
  private readonly trace = currentTrace();

  constructor(audited: AuditedMethod, context: CallContext, request: () => object) {
    this.audited = audited;
    this.context = context;
    this.request = request;
  }

  /** Whether the call has changed something, whatever its outcome. */
  get hasChanged(): boolean {
    return this.trace?.hasChanged ?? false;
  }

  facts(result: string, response?: object): AuditFacts {
    const { caller, requestId, address, metadata } = this.context;
    const origin = { requestId, address, userAgent: metadata.get('user-agent') ?? '' };
    const resource = this.audited.resourceOf(this.request(), response, caller);
    return factsOf(this.audited.action, caller, origin, resource, result);
  }
}

const factsOf = (
  action: string,
  caller: Caller,
  origin: Pick<AuditFacts, 'requestId' | 'address' | 'userAgent'>,
  resource: AuditFacts['resource'],
  result: string,
): AuditFacts => ({
  tenantId: caller.tenantId,
  actor: actorOf(caller),
  action,
  resource,
  result,
  ...origin,
});

/** Returns the fields of a request that are in its path, by local name. */
const fieldsOf = (variables: AccessEntry['variables']): object =>
  Object.fromEntries([...(variables ?? [])].map(([field, value]) => [localName(field), value]));

async function* noteFirst<T extends object>(requests: AsyncIterable<T>, note: (first: T) => void): AsyncGenerator<T> {
  let isFirst = true;
  for await (const request of requests) {
    if (isFirst) note(request);
    isFirst = false;
    yield request;
  }
}

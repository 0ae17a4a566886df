// The current trace: available to everything a call does without being passed along, and exported as OpenTelemetry
// spans if an OTLP endpoint is configured by the standard variables. Otherwise OpenTelemetry's SDK is not loaded.
import { AsyncLocalStorage } from 'node:async_hooks';
import type { DescMethod } from '@bufbuild/protobuf';
import type * as OpenTelemetry from '@opentelemetry/api';
import type { Attributes, Span, SpanKind, Tracer } from '@opentelemetry/api';
import type { Sampler } from '@opentelemetry/sdk-trace';
import type { Logger } from 'pino';
import { randomTraceId, type TraceContext, traceparentOf } from './trace-context.ts';

/** The part of a trace that runs in this process. */
export class Trace {
  /** Its span; undefined if spans are not exported. */
  readonly span: Span | undefined;
  /** The id of its request, for the log. */
  requestId: string | undefined;
  /** Who shares connections fairly with others: the tenant or, until it is known, the address. */
  owner: string | undefined;
  private received: TraceContext | undefined;
  private readonly parent: Trace | undefined;
  private isChanged = false;

  /** `parent` is the part of the same call to which this one belongs. */
  constructor(received: TraceContext | undefined, span: Span | undefined, parent?: Trace) {
    this.received = received;
    this.span = span;
    this.parent = parent;
    this.requestId = parent?.requestId;
    this.owner = parent?.owner;
  }

  /** Whether something is changed for good, as far as this process knows, even if the call fails after that. */
  get hasChanged(): boolean {
    return this.isChanged;
  }

  /** Records that something is changed for good. */
  markChanged(): void {
    this.isChanged = true;
    this.parent?.markChanged();
  }

  /** The position from which the next part continues. A trace without a received context starts here. */
  get context(): TraceContext {
    if (!this.span) {
      return (this.received ??= {
        traceId: randomTraceId(16),
        spanId: randomTraceId(8),
        flags: 0,
        tracestate: '',
      });
    }
    const { traceId, spanId, traceFlags, traceState } = this.span.spanContext();
    return { traceId, spanId, flags: traceFlags, tracestate: traceState?.serialize() ?? '' };
  }

  get traceparent(): string {
    return traceparentOf(this.context);
  }
}

const running = new AsyncLocalStorage<Trace | undefined>();
let exporting: { readonly api: typeof OpenTelemetry; readonly tracer: Tracer } | undefined;

/** Returns the trace of the current call; undefined outside of calls (loops, timers). */
export const currentTrace = (): Trace | undefined => running.getStore();

/** Sets the request id of the current trace. */
export function nameTrace(requestId: string): void {
  const trace = currentTrace();
  if (trace) trace.requestId = requestId;
}

/** Sets the owner of the current trace. */
export function setTraceOwner(owner: string): void {
  const trace = currentTrace();
  if (trace) trace.owner = owner;
}

/** Records that the current call has changed something for good. */
export const markChanged = (): void => currentTrace()?.markChanged();

/** Runs work in the current trace, or in one of its own outside of calls, so that it can have an owner. */
export const inSomeTrace = <T>(work: () => T): T =>
  currentTrace() ? work() : running.run(new Trace(undefined, undefined), work);

/** Runs work that many calls share, so that it does not belong to the one that has started it. */
export const outsideOfCalls = <T>(work: () => T): T => running.run(undefined, work);

/** Runs work that many calls share, which has turns of its own at what owners share, and not those of the loops. */
export const asOwner = <T>(owner: string, work: () => T): T =>
  running.run(new Trace(undefined, undefined), () => {
    setTraceOwner(owner);
    return work();
  });

/**
 * Starts this process's part of a trace. `kind` is a SpanKind's name; the attributes are evaluated only if spans are
 * exported.
 */
export function beginTrace(
  name: string,
  kind: keyof typeof SpanKind,
  received: TraceContext | undefined,
  attributesOf: () => Attributes,
): Trace {
  if (!exporting) return new Trace(received, undefined);
  const { api, tracer } = exporting;
  let parent = api.ROOT_CONTEXT;
  if (received) {
    const { traceId, spanId, flags, tracestate } = received;
    const traceState = tracestate === '' ? undefined : api.createTraceState(tracestate);
    parent = api.trace.setSpanContext(parent, { traceId, spanId, traceFlags: flags & 1, traceState, isRemote: true });
  }
  return new Trace(received, tracer.startSpan(name, { kind: api.SpanKind[kind], attributes: attributesOf() }, parent));
}

/** Returns the span attributes of a call. */
export const rpcAttributes = (method: DescMethod): Attributes => ({
  'rpc.system': 'grpc',
  'rpc.service': method.parent.typeName,
  'rpc.method': method.name,
});

/** Runs work as part of a trace. */
export const inTrace = <T>(trace: Trace, work: () => T): T => running.run(trace, work);

/** Ends a trace's part; `error` is a low-cardinality name of the failure. */
export function endTrace({ span }: Trace, attributes: Attributes, error?: string): void {
  if (!span) return;
  span.setAttributes(error === undefined ? attributes : { ...attributes, 'error.type': error });
  if (error !== undefined) span.setStatus({ code: exporting!.api.SpanStatusCode.ERROR });
  span.end();
}

/**
 * Starts a client span below the current one; returns undefined if spans are not exported, or not for this trace.
 * Outside of calls, in the loops of the data plane, it starts a new trace if `mayBeFirst`. The attributes are evaluated
 * only if it is recorded.
 */
export function beginClientSpan(name: string, attributesOf: () => Attributes, mayBeFirst: boolean): Trace | undefined {
  if (!exporting) return undefined;
  const running = currentTrace();
  if (running ? !running.span?.isRecording() : !mayBeFirst) return undefined;
  const { api, tracer } = exporting;
  const parent = running?.span ? api.trace.setSpan(api.ROOT_CONTEXT, running.span) : api.ROOT_CONTEXT;
  const span = tracer.startSpan(name, { kind: api.SpanKind.CLIENT, attributes: attributesOf() }, parent);
  return new Trace(undefined, span, running);
}

/** Returns the headers with which an HTTP server continues the current trace; empty outside of one. */
export function traceHeaders(): { traceparent?: string; tracestate?: string } {
  const trace = currentTrace();
  if (!trace) return {};
  const { tracestate } = trace.context;
  return { traceparent: trace.traceparent, ...(tracestate === '' ? {} : { tracestate }) };
}

type Environment = Readonly<Record<string, string | undefined>>;

/** Reports whether the standard variables enable spans. */
const isTracingWanted = (environment: Environment): boolean =>
  (environment['OTEL_EXPORTER_OTLP_ENDPOINT'] ?? environment['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] ?? '') !== '' &&
  environment['OTEL_SDK_DISABLED']?.toLowerCase() !== 'true' &&
  (environment['OTEL_TRACES_EXPORTER'] ?? 'otlp') === 'otlp';

/**
 * Starts exporting spans if the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
 * OTEL_TRACES_SAMPLER, …) ask for it. Returns a function that flushes the last spans and stops. Invalid settings are
 * logged rather than thrown: tracing must not keep the process from serving.
 */
export async function startTracing(environment: Environment, logger: Logger): Promise<() => Promise<void>> {
  const nothing = () => Promise.resolve();
  if (!isTracingWanted(environment)) return nothing;
  const protocol =
    environment['OTEL_EXPORTER_OTLP_TRACES_PROTOCOL'] ?? environment['OTEL_EXPORTER_OTLP_PROTOCOL'] ?? 'http/protobuf';
  if (protocol !== 'http/protobuf') {
    logger.error({ protocol }, 'no spans are sent: the only supported OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf');
    return nothing;
  }
  const [api, sdk, { OTLPTraceExporter }, resources] = await Promise.all([
    import('@opentelemetry/api'),
    import('@opentelemetry/sdk-trace'),
    import('@opentelemetry/exporter-trace-otlp-proto'),
    import('@opentelemetry/resources'),
  ]);
  const always = new sdk.AlwaysOnSampler();
  const never = new sdk.AlwaysOffSampler();
  const ratio = () => new sdk.TraceIdRatioBasedSampler(Number(environment['OTEL_TRACES_SAMPLER_ARG'] ?? 1));
  const samplers = new Map<string, () => Sampler>([
    ['always_on', () => always],
    ['always_off', () => never],
    ['traceidratio', ratio],
    ['parentbased_always_on', () => new sdk.ParentBasedSampler({ root: always })],
    ['parentbased_always_off', () => new sdk.ParentBasedSampler({ root: never })],
    ['parentbased_traceidratio', () => new sdk.ParentBasedSampler({ root: ratio() })],
  ]);
  const wanted = environment['OTEL_TRACES_SAMPLER'] ?? 'parentbased_always_on';
  const sampler = samplers.get(wanted);
  if (!sampler) logger.error({ sampler: wanted }, 'unknown OTEL_TRACES_SAMPLER; using parentbased_always_on');
  const detected = resources.detectResources({ detectors: [resources.envDetector] });
  const delay = Number(environment['OTEL_BSP_SCHEDULE_DELAY'] ?? 5000);
  const provider = new sdk.TracerProvider({
    sampler: (sampler ?? samplers.get('parentbased_always_on')!)(),
    resource: resources.resourceFromAttributes({ 'service.name': 'kellet-apiserver' }).merge(detected),
    spanProcessors: [new sdk.BatchSpanProcessor({ exporter: new OTLPTraceExporter(), scheduledDelayMillis: delay })],
  });
  exporting = { api, tracer: provider.getTracer('kellet') };
  return async () => {
    exporting = undefined;
    await provider.shutdown().catch((error: unknown) => logger.warn({ err: error }, 'failed to send the last spans'));
  };
}

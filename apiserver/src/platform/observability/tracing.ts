// The trace of what runs: known to everything a call does, without being handed on, and sent as OpenTelemetry spans when an OTLP
// endpoint is configured by the standard variables. Otherwise nothing of OpenTelemetry's SDK is loaded.
import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import type { DescMethod } from '@bufbuild/protobuf';
import type * as OpenTelemetry from '@opentelemetry/api';
import type { Attributes, Span, SpanKind, Tracer } from '@opentelemetry/api';
import type { Sampler } from '@opentelemetry/sdk-trace';
import type { Logger } from 'pino';
import { traceparentOf, type TraceContext } from './trace-context.ts';

/** A part of a trace that runs in this process. */
export class Trace {
  /** Its span; undefined when spans are not sent. */
  readonly span: Span | undefined;
  /** The id of the request that it is part of, for the log. */
  requestId: string | undefined;
  private received: TraceContext | undefined;

  constructor(received: TraceContext | undefined, span: Span | undefined) {
    this.received = received;
    this.span = span;
  }

  /** Where the trace is: what the next part goes on from. A trace that began nowhere else begins here. */
  get context(): TraceContext {
    if (!this.span) {
      return (this.received ??= {
        traceId: randomBytes(16).toString('hex'),
        spanId: randomBytes(8).toString('hex'),
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

const running = new AsyncLocalStorage<Trace>();
let exporting: { readonly api: typeof OpenTelemetry; readonly tracer: Tracer } | undefined;

/** The trace of the call that runs; undefined outside of calls (loops, timers). */
export const currentTrace = (): Trace | undefined => running.getStore();

/** Says which request the trace that runs is part of. */
export function nameTrace(requestId: string): void {
  const trace = currentTrace();
  if (trace) trace.requestId = requestId;
}

/** Begins this process's part of a trace. `kind` is a SpanKind's name; the attributes are asked for when spans are sent. */
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

/** What a span says of the call that it is about. */
export const rpcAttributes = (method: DescMethod): Attributes => ({
  'rpc.system': 'grpc',
  'rpc.service': method.parent.typeName,
  'rpc.method': method.name,
});

/** Runs work as part of a trace. */
export const inTrace = <T>(trace: Trace, work: () => T): T => running.run(trace, work);

/** Ends a trace's part; `error` is what failed, by a name of few values. */
export function endTrace({ span }: Trace, attributes: Attributes, error?: string): void {
  if (!span) return;
  span.setAttributes(error === undefined ? attributes : { ...attributes, 'error.type': error });
  if (error !== undefined) span.setStatus({ code: exporting!.api.SpanStatusCode.ERROR });
  span.end();
}

/**
 * Begins a span for what is asked of another system, below the one that runs; undefined when spans are not sent, or not for this
 * trace. Outside of calls, in the loops of the data plane, a trace begins with it if `mayBeFirst`. The attributes are asked
 * for when it is recorded.
 */
export function beginClientSpan(name: string, attributesOf: () => Attributes, mayBeFirst: boolean): Trace | undefined {
  if (!exporting) return undefined;
  const running = currentTrace();
  if (running ? !running.span?.isRecording() : !mayBeFirst) return undefined;
  const { api, tracer } = exporting;
  const parent = running?.span ? api.trace.setSpan(api.ROOT_CONTEXT, running.span) : api.ROOT_CONTEXT;
  const span = tracer.startSpan(name, { kind: api.SpanKind.CLIENT, attributes: attributesOf() }, parent);
  const trace = new Trace(undefined, span);
  trace.requestId = running?.requestId;
  return trace;
}

/** The headers by which an HTTP server goes on with the trace that runs; none outside of one. */
export function traceHeaders(): { traceparent?: string; tracestate?: string } {
  const trace = currentTrace();
  if (!trace) return {};
  const { tracestate } = trace.context;
  return { traceparent: trace.traceparent, ...(tracestate === '' ? {} : { tracestate }) };
}

type Environment = Readonly<Record<string, string | undefined>>;

/** Whether the standard variables ask for spans. */
export const isTracingWanted = (environment: Environment): boolean =>
  (environment['OTEL_EXPORTER_OTLP_ENDPOINT'] ?? environment['OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] ?? '') !== '' &&
  environment['OTEL_SDK_DISABLED']?.toLowerCase() !== 'true' &&
  (environment['OTEL_TRACES_EXPORTER'] ?? 'otlp') === 'otlp';

/**
 * Starts sending spans when the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, …) ask
 * for it. Answers what ends it, after the last spans have left. Traces are no reason to serve nobody: what is wrong with the
 * settings is logged.
 */
export async function startTracing(environment: Environment, logger: Logger): Promise<() => Promise<void>> {
  const nothing = () => Promise.resolve();
  if (!isTracingWanted(environment)) return nothing;
  const protocol =
    environment['OTEL_EXPORTER_OTLP_TRACES_PROTOCOL'] ?? environment['OTEL_EXPORTER_OTLP_PROTOCOL'] ?? 'http/protobuf';
  if (protocol !== 'http/protobuf') {
    logger.error({ protocol }, 'no spans are sent: the only protocol of OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf');
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
  if (!sampler) logger.error({ sampler: wanted }, 'OTEL_TRACES_SAMPLER is not known; taking parentbased_always_on');
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
    await provider.shutdown().catch((error: unknown) => logger.warn({ err: error }, 'the last spans were not sent'));
  };
}

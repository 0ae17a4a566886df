// A receiver of OpenTelemetry spans over OTLP (http/protobuf), to which this process sends its spans, for tests.
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { expect } from 'chai';
import { createLogger } from '../observability/logger.ts';
import { startTracing } from '../observability/tracing.ts';

interface Message {
  [field: number]: (Uint8Array | bigint | number)[];
}

/** Returns the fields of a protobuf message by number. */
function fields(bytes: Uint8Array): Message {
  const reader = new BinaryReader(bytes);
  const found: Message = {};
  while (reader.pos < reader.len) {
    const [field, type] = reader.tag();
    const value =
      type === WireType.LengthDelimited
        ? reader.bytes()
        : type === WireType.Varint
          ? Number(reader.uint64())
          : type === WireType.Bit64
            ? BigInt(reader.fixed64())
            : reader.fixed32();
    (found[field] ??= []).push(value);
  }
  return found;
}
const inner = (message: Message, field: number) => (message[field] ?? []).map((value) => fields(value as Uint8Array));
const text = (message: Message, field: number) => Buffer.from((message[field]?.[0] as Uint8Array) ?? []).toString();
const hex = (message: Message, field: number) => Buffer.from((message[field]?.[0] as Uint8Array) ?? []).toString('hex');
const attributesOf = (message: Message, field: number): Record<string, string | number> =>
  Object.fromEntries(
    inner(message, field).map((pair) => {
      const value = inner(pair, 2)[0]!;
      return [text(pair, 1), value[1] ? text(value, 1) : Number(value[3]?.[0])];
    }),
  );

/** A received span. */
export interface ReceivedSpan {
  service: unknown;
  traceId: string;
  spanId: string;
  parentSpanId: string;
  name: string;
  /** 2: server, 3: client. */
  kind: unknown;
  attributes: Record<string, string | number>;
  /** 2: error. */
  status: unknown;
}

/** Returns the spans of an ExportTraceServiceRequest (opentelemetry/proto/collector/trace/v1). */
const spansOf = (request: Uint8Array): ReceivedSpan[] =>
  inner(fields(request), 1).flatMap((resourceSpans) =>
    inner(resourceSpans, 2).flatMap((scopeSpans) =>
      inner(scopeSpans, 2).map((span) => ({
        service: attributesOf(inner(resourceSpans, 1)[0]!, 1)['service.name'],
        traceId: hex(span, 1),
        spanId: hex(span, 2),
        parentSpanId: hex(span, 4),
        name: text(span, 5),
        kind: span[6]?.[0],
        attributes: attributesOf(span, 9),
        status: inner(span, 15)[0]?.[3]?.[0],
      })),
    ),
  );

/** A running receiver. */
export interface OtlpReceiver {
  readonly spans: readonly ReceivedSpan[];
  /** Returns the first span that matches, waiting for it if necessary. */
  span(matches: (one: ReceivedSpan) => boolean): Promise<ReceivedSpan>;
  /** Stops sending and receiving. */
  stop(): Promise<void>;
}

/** Starts a receiver and exports the spans of this process to it. */
export async function startOtlpReceiver(): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = [];
  const server = createServer((request, response) => {
    const chunks: Uint8Array[] = [];
    request.on('data', (chunk: Uint8Array) => chunks.push(chunk));
    request.on('end', () => {
      expect(request.url).to.equal('/v1/traces');
      expect(request.headers['content-type']).to.equal('application/x-protobuf');
      spans.push(...spansOf(Buffer.concat(chunks)));
      response.setHeader('content-type', 'application/x-protobuf').end();
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const settings = {
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    OTEL_SERVICE_NAME: 'kellet-test',
    OTEL_BSP_SCHEDULE_DELAY: '50',
  };
  // The exporter reads the standard variables itself.
  Object.assign(process.env, settings);
  const end = await startTracing(process.env, createLogger('silent'));
  return {
    spans,
    async span(matches) {
      for (let wait = 0; wait < 200; wait += 1) {
        const found = spans.find(matches);
        if (found) return found;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
      throw new Error(`no such span among ${JSON.stringify(spans)}`);
    },
    async stop() {
      await end();
      for (const name of Object.keys(settings)) delete process.env[name];
      server.close();
    },
  };
}

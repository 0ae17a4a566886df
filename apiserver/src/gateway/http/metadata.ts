// Request headers as the metadata that handlers see, on both ports.
import { traceparentOf } from '../../platform/observability/trace-context.ts';
import { currentTrace, type Trace } from '../../platform/observability/tracing.ts';

/** Where a Kubernetes token is used: heard with such a token alone, and what it names is authorised by the cluster. */
export const namespaceHeader = 'x-kellet-namespace';

/** Credentials, and headers that belong to one connection and say nothing about the call. */
const dropped = new Set([
  'authorization',
  'x-api-key',
  namespaceHeader,
  'cookie',
  'connection',
  'keep-alive',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'proxy-authorization',
]);

/** Names by which a client could pretend to be someone: who calls is known from the credential alone. */
const pretended = /^x-(tenant|user|device|caller|scopes?|roles?)(-|$)/;

/**
 * Lower-case names; `Grpc-Metadata-X` becomes `x`; credentials and identity headers are left out. The trace headers are those
 * of the call's trace: the client's when they are valid and no span of ours lies between.
 */
export function requestMetadata(
  headers: Iterable<readonly [string, string]>,
  trace: Trace | undefined = currentTrace(),
): Map<string, string> {
  const metadata = new Map<string, string>();
  for (const [header, value] of headers) {
    const name = header.toLowerCase().replace(/^(grpc-metadata-)+/, '');
    if (name === '' || dropped.has(name) || pretended.test(name)) continue;
    metadata.set(name, value);
  }
  metadata.delete('traceparent');
  metadata.delete('tracestate');
  if (trace) {
    const { context } = trace;
    metadata.set('traceparent', traceparentOf(context));
    if (context.tracestate !== '') metadata.set('tracestate', context.tracestate);
  }
  return metadata;
}

/** The client's request id when it is harmless text, else undefined. */
export function requestIdOf(header: string | undefined): string | undefined {
  return header !== undefined && /^[\w.:-]{1,128}$/.test(header) ? header : undefined;
}

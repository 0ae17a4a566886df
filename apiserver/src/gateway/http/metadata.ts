// Converts request headers to the metadata that handlers see, on both ports.
import { traceparentOf } from '../../platform/observability/trace-context.ts';
import { currentTrace, type Trace } from '../../platform/observability/tracing.ts';

/** Namespace in which a Kubernetes token is used. Ignored for other credentials; the cluster authorises it. */
export const namespaceHeader = 'x-kellet-namespace';

/** Credentials, and headers that concern the connection rather than the call. */
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

/** Headers with which a client could impersonate a caller: identity comes only from the credential. */
const pretended = /^x-(tenant|user|device|caller|scopes?|roles?)(-|$)/;

const isCookie = /^(grpc-metadata-)*cookie$/i;

/** Names of headers as metadata; empty for those that are dropped. Cleared when it outgrows what clients send. */
const knownNames = new Map<string, string>();
const maximumNames = 1000;
/** Longer names are not kept. */
const longestName = 100;

function metadataName(header: string): string {
  const known = knownNames.get(header);
  if (known !== undefined) return known;
  const lower = header.toLowerCase().replace(/^(grpc-metadata-)+/, '');
  const name = dropped.has(lower) || pretended.test(lower) ? '' : lower;
  if (header.length > longestName) return name;
  if (knownNames.size >= maximumNames) knownNames.clear();
  knownNames.set(header, name);
  return name;
}

/**
 * Returns lower-case names; `Grpc-Metadata-X` becomes `x`. Drops credentials and identity headers. The trace headers
 * are those of the call's trace: the client's if valid and no span of ours lies between.
 */
export function requestMetadata(
  headers: Iterable<readonly [string, string]>,
  trace: Trace | undefined = currentTrace(),
): Map<string, string> {
  const metadata = new Map<string, string>();
  let cookies = '';
  for (const [header, value] of headers) {
    const name = metadataName(header);
    if (name !== '') metadata.set(name, value);
    else if (isCookie.test(header)) cookies = ownCookies(value);
  }
  if (cookies !== '') metadata.set('cookie', cookies);
  metadata.delete('traceparent');
  metadata.delete('tracestate');
  if (trace) {
    const { context } = trace;
    metadata.set('traceparent', traceparentOf(context));
    if (context.tracestate !== '') metadata.set('tracestate', context.tracestate);
  }
  return metadata;
}

/** Returns the cookies that single sign-on sets; cookies of other applications on the same host are not passed to handlers. */
const ownCookies = (header: string): string =>
  header
    .split(/; */)
    .filter((cookie) => /^(__Secure-)?kellet_sso_[\w-]{16}=[\w-]+$/.test(cookie))
    .join('; ');

/** Returns the client's request id if it is well-formed, else undefined. */
export function requestIdOf(header: string | undefined): string | undefined {
  return header !== undefined && /^[\w.:-]{1,128}$/.test(header) ? header : undefined;
}

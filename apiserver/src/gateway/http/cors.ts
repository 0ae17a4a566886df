// Cross-origin access: for the dashboard's origin and for no other (SPEC, Cross-origin access).

const methods = 'GET, POST, PUT, PATCH, DELETE';
const requestHeaders =
  'authorization, content-type, x-api-key, x-kellet-namespace, x-request-id, idempotency-key, if-none-match, range, if-range, content-range, traceparent, tracestate, grpc-timeout';
const exposedHeaders =
  'x-request-id, retry-after, www-authenticate, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, content-range, etag, x-kellet-complete';

/** Headers of an answer to a request from this origin; none for an origin that has no access. */
export function corsHeaders(origin: string | undefined, allowed: string): [string, string][] {
  if (allowed === '') return [];
  // The answer differs by origin, so a cache must not give one origin's to another.
  if (origin !== allowed) return [['vary', 'origin']];
  return [
    ['vary', 'origin'],
    ['access-control-allow-origin', allowed],
    ['access-control-expose-headers', exposedHeaders],
  ];
}

/** Headers of the answer to a preflight request. */
export function preflightHeaders(origin: string | undefined, allowed: string): [string, string][] {
  const headers = corsHeaders(origin, allowed);
  if (allowed === '' || origin !== allowed) return headers;
  return [
    ...headers,
    ['access-control-allow-methods', methods],
    ['access-control-allow-headers', requestHeaders],
    ['access-control-max-age', '600'],
  ];
}

/** A preflight: the browser asks before it sends. */
export function isPreflight(verb: string, headers: Record<string, unknown>): boolean {
  return (
    verb === 'OPTIONS' && headers['origin'] !== undefined && headers['access-control-request-method'] !== undefined
  );
}

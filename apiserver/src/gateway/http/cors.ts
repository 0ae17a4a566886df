// Cross-origin access, granted only to the dashboard's origin.

const methods = 'GET, POST, PUT, PATCH, DELETE';
const requestHeaders =
  'authorization, content-type, x-api-key, x-kellet-namespace, x-request-id, idempotency-key, if-none-match, range, if-range, content-range, traceparent, tracestate, grpc-timeout';
const exposedHeaders =
  'x-request-id, retry-after, www-authenticate, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, content-range, etag, x-kellet-complete';

/** Returns the CORS headers for responses to an origin; only `vary` if the origin has no access. */
export function corsHeaders(origin: string | undefined, allowed: string): [string, string][] {
  if (allowed === '') return [];
  // The response depends on the origin, so caches must not share it.
  if (origin !== allowed) return [['vary', 'origin']];
  return [
    ['vary', 'origin'],
    ['access-control-allow-origin', allowed],
    ['access-control-expose-headers', exposedHeaders],
  ];
}

/** Returns the headers of a preflight response. */
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

/** Reports whether a request is a preflight. */
export function isPreflight(verb: string, headers: Record<string, unknown>): boolean {
  return (
    verb === 'OPTIONS' && headers['origin'] !== undefined && headers['access-control-request-method'] !== undefined
  );
}

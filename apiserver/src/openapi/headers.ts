// Request and response headers, which the contract's messages do not describe.
import type { JsonObject, JsonValue } from '@bufbuild/protobuf';

/** Example W3C traceparent, version 00. */
const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';

const request = (name: string, description: string, schema: JsonObject, example?: JsonValue): JsonObject => ({
  name,
  in: 'header',
  description,
  schema,
  ...(example === undefined ? {} : { example }),
});

const parameters = {
  'X-Request-Id': request(
    'X-Request-Id',
    "The client's id for the request, repeated in the response and the log: at most 128 letters, digits and `_.:-`. Other values are replaced by a new id.",
    { type: 'string' },
    'order-7431.attempt-2',
  ),
  traceparent: request(
    'traceparent',
    'The trace that the call belongs to (W3C Trace Context). Malformed values are ignored.',
    { type: 'string' },
    traceparent,
  ),
  tracestate: request('tracestate', 'Vendor-specific trace state that accompanies `traceparent`.', { type: 'string' }),
  'grpc-timeout': request(
    'grpc-timeout',
    'Timeout of the call: one to eight digits and a unit (`H`, `M`, `S`, `m` for milliseconds, `u`, `n`). The call then fails with `DEADLINE_EXCEEDED`.',
    { type: 'string', pattern: '^[0-9]{1,8}[HMSmun]$' },
    '10S',
  ),
  'X-Kellet-Namespace': request(
    'X-Kellet-Namespace',
    'Only with a Kubernetes token: the namespace of the tenant. Defaults to the namespace of the service account.',
    { type: 'string', maxLength: 63 },
    'kellet-acme',
  ),
  'Idempotency-Key': request(
    'Idempotency-Key',
    'Repeating the key within a day returns the first response; a different body is an error.',
    { type: 'string', pattern: '^[!-~]{1,255}$' },
  ),
  'If-None-Match': request('If-None-Match', "Entity tag of the client's copy. Returns 304 if it is current.", {
    type: 'string',
  }),
  Range: request(
    'Range',
    'Byte range, with `Accept: application/octet-stream`, in place of offset and length.',
    { type: 'string' },
    'bytes=0-65535',
  ),
  'If-Range': request(
    'If-Range',
    'Entity tag of the package that the range belongs to. If it is a different package, the range is ignored.',
    { type: 'string' },
  ),
  'Content-Range': request(
    'Content-Range',
    'Position of the bytes in the artifact, in place of offset.',
    { type: 'string' },
    'bytes 0-65535/150000',
  ),
} satisfies Record<string, JsonObject>;

/** Name of a documented request header. */
export type RequestHeader = keyof typeof parameters;

/** `components.parameters`. */
export const headerParameters: JsonObject = parameters;

/** Headers of every request, and headers of every call. */
export const requestHeaders: readonly RequestHeader[] = ['X-Request-Id', 'traceparent', 'tracestate'];
export const callHeaders: readonly RequestHeader[] = [...requestHeaders, 'grpc-timeout'];

/** Returns references to parameters. */
export const parameterReferences = (names: readonly RequestHeader[]): JsonValue[] =>
  names.map((name) => ({ $ref: `#/components/parameters/${name}` }));

/** Request headers of single methods. */
export const methodHeaders: Record<string, readonly RequestHeader[]> = {
  Ingest: ['Idempotency-Key'],
  GetChunk: ['Range', 'If-Range'],
  GetRevocationList: ['If-None-Match'],
  UploadArtifact: ['Content-Range'],
};

/** The header that goes with a Kubernetes token. */
export const kubernetesHeaders: readonly RequestHeader[] = ['X-Kellet-Namespace'];

const header = (description: string, schema: JsonObject): JsonObject => ({ description, schema });

const responseHeaderTable = {
  'X-Request-Id': header("The client's request id, or a generated one.", { type: 'string' }),
  'X-RateLimit-Limit': header('Requests per window. Only for calls that count towards it.', {
    type: 'integer',
    minimum: 0,
  }),
  'X-RateLimit-Remaining': header('Requests left in the window.', { type: 'integer', minimum: 0 }),
  'X-RateLimit-Reset': header('Unix time at which the window ends, a multiple of 60.', {
    type: 'integer',
    minimum: 0,
    multipleOf: 60,
  }),
  'Retry-After': header('Seconds to wait before a retry.', { type: 'integer', minimum: 1 }),
  'WWW-Authenticate': header(
    'Accepted scheme (RFC 6750), with `error="insufficient_user_authentication"` if a recent sign-in is missing (RFC 9470). API keys are also accepted in `X-API-Key`.',
    { type: 'string', pattern: '^Bearer( |$)' },
  ),
  ETag: header('Changes when the content changes.', { type: 'string' }),
  'Cache-Control': header(
    'Responses must not be cached, except for this document and revocation lists, which clients may store and revalidate.',
    {
      type: 'string',
      enum: ['no-store', 'private, no-cache'],
    },
  ),
  'Content-Range': header('Range and total size. Only on raw byte responses.', { type: 'string' }),
  'X-Kellet-Complete': header('Whether the bytes reach the end of the artifact. Only on raw byte responses.', {
    type: 'string',
    enum: ['true', 'false'],
  }),
} satisfies Record<string, JsonObject>;

/** Name of a documented response header. */
export type ResponseHeader = keyof typeof responseHeaderTable;

/** `components.headers`. */
export const responseHeaders: JsonObject = responseHeaderTable;

/** Headers of every response. */
export const commonHeaders: readonly ResponseHeader[] = ['X-Request-Id', 'Cache-Control'];

/** Rate limit headers. */
export const limitHeaders: readonly ResponseHeader[] = [
  'X-RateLimit-Limit',
  'X-RateLimit-Remaining',
  'X-RateLimit-Reset',
];

/** Returns references to response headers. */
export const references = (names: readonly ResponseHeader[]): JsonObject =>
  Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));

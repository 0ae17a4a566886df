// Headers of requests and answers, which no message of the contract holds.
import type { JsonObject, JsonValue } from '@bufbuild/protobuf';

/** A W3C trace parent of version 00 (Trace Context, 3.2). */
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
    "The client's own id of the request, in the answer and in the log; 128 letters, digits and `_.:-` at most. A new one takes the place of any other text.",
    { type: 'string' },
    'order-7431.attempt-2',
  ),
  traceparent: request(
    'traceparent',
    'The trace that the call belongs to (W3C Trace Context); what is not well-formed is left aside.',
    { type: 'string' },
    traceparent,
  ),
  tracestate: request('tracestate', "What the trace's systems pass on, beside `traceparent`.", { type: 'string' }),
  'grpc-timeout': request(
    'grpc-timeout',
    'How long the client waits: one to eight digits and a unit (`H`, `M`, `S`, `m` for milliseconds, `u`, `n`). Then the call ends with `DEADLINE_EXCEEDED`.',
    { type: 'string', pattern: '^[0-9]{1,8}[HMSmun]$' },
    '10S',
  ),
  'X-Kellet-Namespace': request(
    'X-Kellet-Namespace',
    "With a Kubernetes token alone: the namespace of the tenant that is meant; by default the service account's own.",
    { type: 'string', maxLength: 63 },
    'kellet-acme',
  ),
  'Idempotency-Key': request(
    'Idempotency-Key',
    'The same key again answers as the first request did, for a day; with another body it is an error.',
    { type: 'string', pattern: '^[!-~]{1,255}$' },
  ),
  'If-None-Match': request('If-None-Match', 'The entity tag of what the client has: 304 when that is the newest.', {
    type: 'string',
  }),
  Range: request(
    'Range',
    'The bytes wanted, with `Accept: application/octet-stream`, instead of offset and length.',
    { type: 'string' },
    'bytes=0-65535',
  ),
  'If-Range': request(
    'If-Range',
    'The entity tag of the package whose part is wanted; of another package the whole is answered.',
    { type: 'string' },
  ),
  'Content-Range': request(
    'Content-Range',
    'Where in the artifact the bytes belong, instead of offset.',
    { type: 'string' },
    'bytes 0-65535/150000',
  ),
} satisfies Record<string, JsonObject>;

/** A header that a request may carry. */
export type RequestHeader = keyof typeof parameters;

/** `components.parameters`. */
export const headerParameters: JsonObject = parameters;

/** Headers of every request, and those of every call. */
export const requestHeaders: readonly RequestHeader[] = ['X-Request-Id', 'traceparent', 'tracestate'];
export const callHeaders: readonly RequestHeader[] = [...requestHeaders, 'grpc-timeout'];

/** Parameters by reference. */
export const parameterReferences = (names: readonly RequestHeader[]): JsonValue[] =>
  names.map((name) => ({ $ref: `#/components/parameters/${name}` }));

/** Request headers of single methods. */
export const methodHeaders: Record<string, readonly RequestHeader[]> = {
  Ingest: ['Idempotency-Key'],
  GetChunk: ['Range', 'If-Range'],
  UploadArtifact: ['Content-Range'],
};

/** The header that goes with a Kubernetes token. */
export const kubernetesHeaders: readonly RequestHeader[] = ['X-Kellet-Namespace'];

const answer = (description: string, schema: JsonObject): JsonObject => ({ description, schema });

const answers = {
  'X-Request-Id': answer("The client's own id, or a new one.", { type: 'string' }),
  'X-RateLimit-Limit': answer('Requests in the window; of calls that count against it.', {
    type: 'integer',
    minimum: 0,
  }),
  'X-RateLimit-Remaining': answer('Requests left in the window.', { type: 'integer', minimum: 0 }),
  'X-RateLimit-Reset': answer('Unix second at which the window ends, a multiple of 60.', {
    type: 'integer',
    minimum: 0,
    multipleOf: 60,
  }),
  'Retry-After': answer('Seconds after which a retry makes sense.', { type: 'integer', minimum: 1 }),
  'WWW-Authenticate': answer('What is accepted (RFC 6750); an API key also in `X-API-Key`.', {
    type: 'string',
    const: 'Bearer',
  }),
  ETag: answer('Changes when the content does.', { type: 'string' }),
  'Cache-Control': answer('No cache may keep an answer; this document may be kept by its reader, who asks again.', {
    type: 'string',
    enum: ['no-store', 'private, no-cache'],
  }),
  'Content-Range': answer('Which bytes of how many; of raw bytes alone.', { type: 'string' }),
  'X-Kellet-Complete': answer('Whether the bytes reach the end of the artifact; of raw bytes alone.', {
    type: 'string',
    enum: ['true', 'false'],
  }),
} satisfies Record<string, JsonObject>;

/** A header that an answer may carry. */
export type AnswerHeader = keyof typeof answers;

/** `components.headers`. */
export const answerHeaders: JsonObject = answers;

/** Headers of every answer. */
export const everyAnswer: readonly AnswerHeader[] = ['X-Request-Id', 'Cache-Control'];

/** Headers of the rate limit. */
export const limitHeaders: readonly AnswerHeader[] = [
  'X-RateLimit-Limit',
  'X-RateLimit-Remaining',
  'X-RateLimit-Reset',
];

/** Headers of an answer, by reference. */
export const references = (names: readonly AnswerHeader[]): JsonObject =>
  Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));

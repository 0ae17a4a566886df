// What the messages do not say: headers that a method reads, and answers of raw bytes.
import type { JsonObject } from '@bufbuild/protobuf';

/** Request headers by method, as names of `components.parameters`. */
export const extraHeaders: Record<string, readonly string[]> = {
  Ingest: ['Idempotency-Key'],
  GetChunk: ['Range', 'If-Range'],
  UploadArtifact: ['Content-Range'],
};

const bytes = { type: 'string', format: 'binary' };

interface RawAnswers {
  readonly content: JsonObject;
  /** Headers of a success with this content. */
  readonly headers: readonly string[];
  readonly statuses: JsonObject;
}

const rangeHeaders = ['Content-Range', 'X-Kellet-Complete', 'ETag'];

/** Headers of an answer, by reference. */
export const references = (names: readonly string[]): JsonObject =>
  Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));

/** Answers of raw bytes by method, beside the JSON. */
export const rawAnswers: Record<string, RawAnswers> = {
  GetChunk: {
    content: { 'application/octet-stream': { schema: bytes } },
    headers: rangeHeaders,
    statuses: {
      '206': {
        description: 'The bytes that Range asks for.',
        headers: references(['X-Request-Id', ...rangeHeaders]),
        content: { 'application/octet-stream': { schema: bytes } },
      },
      '416': {
        description: 'Range begins beyond the end of the artifact.',
        headers: references(['X-Request-Id', 'Content-Range']),
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    },
  },
};

/** `components.parameters`. */
export const headerParameters: JsonObject = {
  'Idempotency-Key': {
    name: 'Idempotency-Key',
    in: 'header',
    description: 'The same key again answers as the first request did, for a day; with another body it is an error.',
    schema: { type: 'string', pattern: '^[!-~]{1,255}$' },
  },
  Range: {
    name: 'Range',
    in: 'header',
    description: 'The bytes wanted, with `Accept: application/octet-stream`, instead of offset and length.',
    schema: { type: 'string' },
    example: 'bytes=0-65535',
  },
  'If-Range': {
    name: 'If-Range',
    in: 'header',
    description: 'The entity tag of the package whose part is wanted; of another package the whole is answered.',
    schema: { type: 'string' },
  },
  'Content-Range': {
    name: 'Content-Range',
    in: 'header',
    description: 'Where in the artifact the bytes belong, instead of offset.',
    schema: { type: 'string' },
    example: 'bytes 0-65535/150000',
  },
};

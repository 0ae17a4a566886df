// What the messages do not say: answers of raw bytes.
import type { JsonObject } from '@bufbuild/protobuf';
import { everyAnswer, references, type AnswerHeader } from './headers.ts';

/** Content that is the bytes themselves; generators of clients know them by this format. */
export const rawBytes: JsonObject = { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } };

interface RawAnswers {
  readonly content: JsonObject;
  /** Headers of a success with this content. */
  readonly headers: readonly AnswerHeader[];
  readonly statuses: JsonObject;
}

const rangeHeaders: readonly AnswerHeader[] = ['Content-Range', 'X-Kellet-Complete', 'ETag'];

/** Answers of raw bytes by method, beside the JSON. */
export const rawAnswers: Record<string, RawAnswers> = {
  GetChunk: {
    content: rawBytes,
    headers: rangeHeaders,
    statuses: {
      '206': {
        description: 'The bytes that Range asks for.',
        headers: references([...everyAnswer, ...rangeHeaders]),
        content: rawBytes,
      },
      '416': {
        description: 'Range begins beyond the end of the artifact.',
        headers: references([...everyAnswer, 'Content-Range']),
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    },
  },
};

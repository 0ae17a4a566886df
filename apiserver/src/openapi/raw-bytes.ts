// Bodies and responses that the messages do not describe: raw bytes and files.
import type { JsonObject } from '@bufbuild/protobuf';
import { commonHeaders, references, type ResponseHeader } from './headers.ts';

/** Raw byte content; client generators recognise the `binary` format. */
export const rawBytes: JsonObject = { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } };

const csv: JsonObject = { 'text/csv': { schema: { type: 'string' } } };
const ndjson: JsonObject = { 'application/x-ndjson': { schema: { type: 'string' } } };

/** Content of requests with other bytes than raw ones, by method. */
export const rawRequests: Readonly<Record<string, JsonObject>> = {
  BackchannelLogout: {
    'application/x-www-form-urlencoded': {
      schema: { type: 'object', properties: { logout_token: { type: 'string' } }, required: ['logout_token'] },
    },
  },
  ImportDevices: { ...csv, ...ndjson },
};

/** Content of responses with other bytes than raw ones, by method. */
export const fileResponses: Readonly<Record<string, JsonObject>> = {
  ExportDevices: { ...csv, ...ndjson },
  GetRevocationList: { 'application/pkix-crl': { schema: { type: 'string', format: 'binary' } } },
};

interface RawResponses {
  readonly content: JsonObject;
  /** Headers of a success response with this content. */
  readonly headers: readonly ResponseHeader[];
  readonly statuses: JsonObject;
}

const rangeHeaders: readonly ResponseHeader[] = ['Content-Range', 'X-Kellet-Complete', 'ETag'];

/** Raw byte responses by method, in addition to the JSON ones. */
export const rawResponses: Record<string, RawResponses> = {
  GetRevocationList: {
    content: {},
    headers: ['ETag'],
    statuses: {
      '304': {
        description: "The client's copy is current (`If-None-Match`).",
        headers: references([...commonHeaders, 'ETag']),
      },
    },
  },
  GetChunk: {
    content: rawBytes,
    headers: rangeHeaders,
    statuses: {
      '206': {
        description: 'The bytes requested by Range.',
        headers: references([...commonHeaders, ...rangeHeaders]),
        content: rawBytes,
      },
      '416': {
        description: 'Range starts beyond the end of the artifact.',
        headers: references([...commonHeaders, 'Content-Range']),
        content: { 'application/json': { schema: { $ref: '#/components/schemas/Error' } } },
      },
    },
  },
};

// A chunk of an artifact as raw bytes: the same call as for JSON, with the range in headers.
import { create, type Message } from '@bufbuild/protobuf';
import {
  type Chunk,
  ChunkSchema,
  type GetChunkRequest,
  GetChunkRequestSchema,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { invalidArgument, KelletError } from '../../platform/errors.ts';
import type { Route } from '../transcoding/routes.ts';
import type { RestResponse } from '../transcoding/transcode.ts';
import { type ByteRange, parseRange, prefersBytes } from './byte-range.ts';

/** Maximum size of a chunk. */
const chunkBytes = 64 * 1024;

/** The headers used here. */
export interface RangeHeaders {
  readonly accept?: string | undefined;
  readonly range?: string | undefined;
  readonly 'if-range'?: string | undefined;
}

/** A Range outside the artifact: HTTP 416, with the artifact's size in Content-Range (RFC 9110, 15.5.17). */
export class RangeNotSatisfiable extends KelletError {
  readonly size: number;
  constructor(size: number) {
    super('OUT_OF_RANGE', `the range starts beyond the end of the artifact (${size} bytes)`);
    this.name = 'RangeNotSatisfiable';
    this.size = size;
  }
}

/** Reports whether a request prefers a chunk as raw bytes. */
export const wantsRawChunk = (route: Route, headers: RangeHeaders): boolean =>
  route.method.output.typeName === ChunkSchema.typeName && prefersBytes(headers.accept);

/**
 * Returns a chunk as bytes, with 206 if a Range was honoured. A range longer than a chunk is truncated, as RFC 9110
 * allows; Content-Range tells the client what it got. Throws RangeNotSatisfiable.
 */
export async function rawChunk(
  message: Message,
  headers: RangeHeaders,
  call: (request: GetChunkRequest) => Promise<Message>,
): Promise<RestResponse> {
  const request = message as GetChunkRequest;
  // A package's bytes never change, so its id identifies the version of the artifact.
  const etag = `"${request.packageId.toLowerCase()}"`;
  const ifRange = headers['if-range'];
  const range = ifRange === undefined || ifRange.toLowerCase() === etag ? parseRange(headers.range) : undefined;
  if (!range) return responseOf((await call(request)) as Chunk, etag, 200);

  if (request.offset !== 0 || request.length !== undefined) {
    throw invalidArgument('offset and length cannot be given together with Range');
  }
  const sizeOf = async (): Promise<number> => ((await call(part(request, 0, 1))) as Chunk).sizeBytes;
  const size = 'suffix' in range ? await sizeOf() : undefined;
  const { first, length } = resolve(range, size);
  try {
    if (length === 0 || first > 0xffff_ffff) throw new RangeNotSatisfiable(size ?? (await sizeOf()));
    return responseOf((await call(part(request, first, length))) as Chunk, etag, 206);
  } catch (error) {
    if (!(error instanceof KelletError) || error.code !== 'INVALID_ARGUMENT' || first === 0) throw error;
    const end = size ?? (await sizeOf());
    throw first >= end ? new RangeNotSatisfiable(end) : error;
  }
}

const part = (request: GetChunkRequest, offset: number, length: number): GetChunkRequest =>
  create(GetChunkRequestSchema, { deviceId: request.deviceId, packageId: request.packageId, offset, length });

/** Returns the first byte and the length to request. `size` is known when the range counts from the end. */
function resolve(range: ByteRange, size = 0): { first: number; length: number } {
  if ('suffix' in range) {
    return { first: Math.max(0, size - range.suffix), length: Math.min(range.suffix, size, chunkBytes) };
  }
  const length = range.last === undefined ? chunkBytes : range.last - range.first + 1;
  return { first: range.first, length: Math.min(length, chunkBytes) };
}

function responseOf(chunk: Chunk, etag: string, status: number): RestResponse {
  const last = chunk.offset + chunk.data.length - 1;
  return {
    status,
    headers: [
      ['content-range', `bytes ${chunk.offset}-${last}/${chunk.sizeBytes}`],
      ['accept-ranges', 'bytes'],
      ['etag', etag],
      ['x-kellet-complete', String(chunk.complete)],
    ],
    contentType: 'application/octet-stream',
    body: chunk.data,
  };
}

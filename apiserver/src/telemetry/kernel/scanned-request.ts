// An ingest request whose body was scanned: its points become objects only when they are read.
import { create, type Message } from '@bufbuild/protobuf';
import { IngestRequestSchema } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import type { IngestRequest } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { scanBody, type ScannedBody } from './scan.ts';

const scans = new WeakMap<Message, ScannedBody>();

/** Maximum points of a request. */
export const maximumPoints = 5000;

/** Returns the request of a body, which `decode` decodes on demand, or undefined if only `decode` can tell what it is. */
export function scanRequest(body: Uint8Array, decode: () => Message): IngestRequest | undefined {
  const scanned = scanBody(body, maximumPoints);
  if (!scanned) return undefined;
  const request = create(IngestRequestSchema);
  let decoded: IngestRequest | undefined;
  Object.defineProperty(request, 'points', {
    get: () => (decoded ??= decode() as IngestRequest).points,
    ...{ enumerable: true, configurable: true },
  });
  scans.set(request, scanned);
  return request;
}

/** Returns what was in the body of a request that was scanned, or undefined. */
export const scannedBody = (request: IngestRequest): ScannedBody | undefined => scans.get(request);

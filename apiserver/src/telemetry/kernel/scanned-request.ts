// An ingest request whose body was scanned: its points become objects only when they are read.
import type { Message } from '@bufbuild/protobuf';
import type { IngestRequest } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { type PointDefaults, scanBody, type ScannedBody } from './scan.ts';

/** Maximum points of a request. */
export const maximumPoints = 5000;

/**
 * A request as the general path decodes it. A class, because V8 keeps what defines an accessor of a single object until it collects
 * the whole heap, and with it the body and everything that the request refers to.
 */
class ScannedRequest implements IngestRequest {
  readonly $typeName = 'kellet.v1.IngestRequest';
  readonly scanned: ScannedBody;
  private readonly decode: () => Message;
  private decoded: IngestRequest | undefined = undefined;

  constructor(scanned: ScannedBody, decode: () => Message) {
    this.scanned = scanned;
    this.decode = decode;
  }

  get points(): IngestRequest['points'] {
    return (this.decoded ??= this.decode() as IngestRequest).points;
  }
}

/** Returns the request of a body, which `decode` decodes on demand, or undefined if only `decode` can tell what it is. */
export function scanRequest(
  body: Uint8Array,
  decode: () => Message,
  defaults?: PointDefaults,
): IngestRequest | undefined {
  const scanned = scanBody(body, maximumPoints, defaults);
  return scanned && new ScannedRequest(scanned, decode);
}

/** Returns what was in the body of a request that was scanned, or undefined. */
export const scannedBody = (request: IngestRequest): ScannedBody | undefined =>
  request instanceof ScannedRequest ? request.scanned : undefined;

// The payload of telemetry: one point, a batch of points, or the protobuf message of the contract.
import { create, type JsonObject } from '@bufbuild/protobuf';
import { type TelemetryPoint, TelemetryPointSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { type IngestRequest, IngestRequestSchema } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { decodeBinary } from '../gateway/transcoding/binary-message.ts';
import { decodePlain } from '../gateway/transcoding/compiled-decoder.ts';
import type { Route } from '../gateway/transcoding/routes.ts';
import { JsonProblem, parseStrictJson, sizeProblem } from '../gateway/transcoding/strict-json.ts';
import { type BodyDefaults, decodeRequest, type RequestReader } from '../gateway/transcoding/transcode.ts';
import { invalidArgument } from '../platform/errors.ts';

/** How telemetry is decoded. */
export interface TelemetryDecoding {
  readonly route: Route;
  /** Reads ordinary payloads faster. */
  readonly reader: RequestReader | undefined;
}

/** The content type (MQTT 5) of an IngestRequest as protobuf. */
const protobufTypes: ReadonlySet<string> = new Set(['application/x-protobuf', 'application/protobuf']);

/**
 * Decodes the points of a message. Those without a device are of `deviceId`, those without a time of `now`. Throws
 * INVALID_ARGUMENT with a message that names the field.
 */
export function decodeTelemetry(
  { route, reader }: TelemetryDecoding,
  payload: Buffer,
  contentType: string,
  defaults: BodyDefaults,
): IngestRequest {
  if (protobufTypes.has(contentType)) return withDefaults(decodeBinary(IngestRequestSchema, payload), defaults);
  const decode = (): IngestRequest => withDefaults(fromJson(route, payload), defaults);
  return (reader?.(payload, decode, defaults) as IngestRequest | undefined) ?? decode();
}

function withDefaults(request: IngestRequest, defaults: BodyDefaults): IngestRequest {
  let timestamp: string | undefined;
  for (const point of request.points) {
    if (point.deviceId === '') point.deviceId = defaults.deviceId;
    if (point.timestamp === '') point.timestamp = timestamp ??= new Date(defaults.now).toISOString();
  }
  return request;
}

function fromJson(route: Route, payload: Buffer): IngestRequest {
  checkSize(payload);
  const batch = decodePlain(IngestRequestSchema, payload) as IngestRequest | undefined;
  if (batch && batch.points.length > 0) return batch;
  const point = decodePlain(TelemetryPointSchema, payload) as TelemetryPoint | undefined;
  if (point) return create(IngestRequestSchema, { points: [point] });
  const object = jsonObject(payload);
  const body = Object.hasOwn(object, 'points') ? payload : Buffer.from(JSON.stringify({ points: [object] }));
  return decodeRequest({ route, variables: new Map() }, { query: '', body, contentType: '' }) as IngestRequest;
}

/** Returns a payload that must be a JSON object. Throws INVALID_ARGUMENT. */
export function jsonObject(payload: Buffer): JsonObject {
  checkSize(payload);
  try {
    const value = parseStrictJson(payload);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    throw invalidArgument([...error.path.map(String), error.message].join(': '));
  }
  throw invalidArgument('the payload must be a JSON object');
}

/** Refuses what would take much more memory as objects than as text. */
function checkSize(payload: Buffer): void {
  const problem = sizeProblem(payload);
  if (problem !== undefined) throw invalidArgument(`the payload: ${problem}`);
}

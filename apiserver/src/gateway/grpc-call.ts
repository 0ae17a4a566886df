// One gRPC call as a call of the data plane: its metadata, its context, its errors.
import {
  create,
  isMessage,
  toBinary,
  toJson,
  type DescMessage,
  type DescMethod,
  type JsonValue,
  type Message,
} from '@bufbuild/protobuf';
import { anyPack, DurationSchema, type FieldMask } from '@bufbuild/protobuf/wkt';
import type { Metadata, StatusObject } from '@grpc/grpc-js';
import { RequestInfoSchema, RetryInfoSchema } from '@kellet/proto/es/google/rpc/error_details_pb';
import { StatusSchema } from '@kellet/proto/es/google/rpc/status_pb';
import { codes, invalidArgument, toKelletError, type KelletError } from '../platform/errors.ts';
import { metadataText, toMetadata } from '../platform/grpc-context.ts';
import { newRequestId } from '../platform/ids.ts';
import type { Logger } from '../platform/logger.ts';
import type { AddressOf } from './client-address.ts';
import { requestIdOf } from './metadata.ts';
import { showProblem, type JsonPath } from './field-path.ts';
import { textProblem } from './strict-json.ts';
import { checkMask, hasUpdateMask } from './update-mask.ts';

/** From where a call comes, through trusted proxies. */
export const addressOfCall = (addressOf: AddressOf, peer: string, metadata: Metadata): string =>
  addressOf(
    peer.replace(/:\d+$/, '').replace(/^\[|\]$/g, ''),
    (name) => metadata.get(name).map(String).join(',') || undefined,
  );

/** The request id of a call: the client's, or a new one. */
export const grpcRequestId = (metadata: Metadata): string =>
  requestIdOf(metadataText(metadata, 'x-request-id')) ?? newRequestId();

/** What the client sees of anything thrown; an internal error is logged and shows nothing. */
export function toStatus(thrown: unknown, headers: ReadonlyMap<string, string>, logger: Logger): StatusObject {
  const error = toKelletError(thrown);
  if (error.code === 'INTERNAL') {
    logger.error({ err: error.cause ?? error, request_id: headers.get('x-request-id') }, 'call failed');
  }
  return statusOf(error, headers);
}

/** An error as the client sees it. */
export function statusOf(error: KelletError, headers: ReadonlyMap<string, string>): StatusObject {
  const metadata = toMetadata(headers);
  if (error.retryAfterSeconds !== undefined) metadata.set('retry-after', String(error.retryAfterSeconds));
  metadata.set('grpc-status-details-bin', statusDetails(error, headers.get('x-request-id') ?? ''));
  return { code: codes[error.code].grpc, details: error.message, metadata };
}

/** google.rpc.Status: the same code and message, and what a client may do with the error, in the types that clients know. */
function statusDetails(error: KelletError, requestId: string): Buffer {
  const details = [anyPack(RequestInfoSchema, create(RequestInfoSchema, { requestId }))];
  if (error.retryAfterSeconds !== undefined) {
    const retryDelay = create(DurationSchema, { seconds: BigInt(error.retryAfterSeconds) });
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  const status = create(StatusSchema, { code: codes[error.code].grpc, message: error.message, details });
  return Buffer.from(toBinary(StatusSchema, status));
}

/**
 * What protobuf lets pass and the contract does not: NUL in text, and an update that does not say what it changes. Throws
 * INVALID_ARGUMENT.
 */
export function checkRequest(method: DescMethod, message: Message): void {
  checkTexts(method.input, message);
  if (!hasUpdateMask(method.input)) return;
  const mask = (message as Message & { updateMask?: FieldMask }).updateMask;
  if (!mask || mask.paths.length === 0) throw invalidArgument('update_mask is required');
  mask.paths = checkMask(method.input, mask.paths);
}

/** Throws INVALID_ARGUMENT for text that the contract does not take, naming its field. */
function checkTexts(schema: DescMessage, message: Message): void {
  const problem = badText(message);
  if (problem === undefined) return;
  let path: JsonPath | undefined;
  try {
    path = pathOfBadText(toJson(schema, message, { useProtoFieldName: true }));
  } catch {
    // Another part of the message has no JSON; what is wrong with the text can be said all the same.
  }
  throw invalidArgument(path ? showProblem(schema, path, problem) : `text ${problem}`);
}

/** What is wrong with some text within a message's field, or undefined. */
function badText(value: unknown): string | undefined {
  if (typeof value === 'string') return textProblem(value);
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return undefined;
  if (!Array.isArray(value) && !isMessage(value)) {
    // A map field or a oneof: its keys are text of the client too.
    for (const key of Object.keys(value)) {
      const problem = textProblem(key);
      if (problem !== undefined) return problem;
    }
  }
  for (const item of Object.values(value)) {
    const problem = badText(item);
    if (problem !== undefined) return problem;
  }
  return undefined;
}

function pathOfBadText(value: JsonValue): JsonPath | undefined {
  if (typeof value === 'string') return textProblem(value) === undefined ? undefined : [];
  if (typeof value !== 'object' || value === null) return undefined;
  const entries: Iterable<[string | number, JsonValue]> = Array.isArray(value)
    ? value.entries()
    : Object.entries(value);
  for (const [key, item] of entries) {
    if (typeof key === 'string' && textProblem(key) !== undefined) return [key];
    const path = pathOfBadText(item);
    if (path) return [key, ...path];
  }
  return undefined;
}

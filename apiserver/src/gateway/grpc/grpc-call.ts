// Converts a gRPC call to a call of the data plane: metadata, request and errors.
import { create, type DescMethod, type Message, toBinary } from '@bufbuild/protobuf';
import { anyPack, DurationSchema, type FieldMask } from '@bufbuild/protobuf/wkt';
import type { Metadata, StatusObject } from '@grpc/grpc-js';
import { RequestInfoSchema, RetryInfoSchema } from '@kellet/proto/es/google/rpc/error_details_pb';
import { StatusSchema } from '@kellet/proto/es/google/rpc/status_pb';
import { codes, invalidArgument, type KelletError, toKelletError } from '../../platform/errors.ts';
import { metadataText, toMetadata } from '../../platform/grpc/grpc-context.ts';
import { newRequestId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { AddressOf } from '../admission/client-address.ts';
import { requestIdOf } from '../http/metadata.ts';
import { decodeBinary } from '../transcoding/binary-message.ts';
import { checkMask, hasUpdateMask } from '../transcoding/update-mask.ts';

/** A telemetry request of 4 MiB plus overhead. */
export const maximumMessageBytes = 4 * 1024 * 1024 + 64 * 1024;

/** Returns the client address of a call, through trusted proxies. */
export const addressOfCall = (addressOf: AddressOf, peer: string, metadata: Metadata): string =>
  addressOf(
    peer.replace(/:\d+$/, '').replace(/^\[|\]$/g, ''),
    (name) => metadata.get(name).map(String).join(',') || undefined,
  );

/** Returns the request id of a call: the client's, or a new one. */
export const grpcRequestId = (metadata: Metadata): string =>
  requestIdOf(metadataText(metadata, 'x-request-id')) ?? newRequestId();

/** Converts anything thrown to the status for the client. Internal errors are logged and hidden. */
export function toStatus(thrown: unknown, headers: ReadonlyMap<string, string>, logger: Logger): StatusObject {
  const error = toKelletError(thrown);
  if (error.code === 'INTERNAL') {
    logger.error({ err: error.cause ?? error, request_id: headers.get('x-request-id') }, 'call failed');
  }
  return statusOf(error, headers);
}

/** Converts an error to the status for the client. */
export function statusOf(error: KelletError, headers: ReadonlyMap<string, string>): StatusObject {
  const metadata = toMetadata(headers);
  if (error.retryAfterSeconds !== undefined) metadata.set('retry-after', String(error.retryAfterSeconds));
  metadata.set('grpc-status-details-bin', statusDetails(error, headers.get('x-request-id') ?? ''));
  return { code: codes[error.code].grpc, details: error.message, metadata };
}

/** Encodes google.rpc.Status: the same code and message, with details in the types that clients know. */
function statusDetails(error: KelletError, requestId: string): Buffer {
  const details = [anyPack(RequestInfoSchema, create(RequestInfoSchema, { requestId }))];
  if (error.retryAfterSeconds !== undefined) {
    const retryDelay = create(DurationSchema, { seconds: BigInt(error.retryAfterSeconds) });
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  const status = create(StatusSchema, { code: codes[error.code].grpc, message: error.message, details });
  return Buffer.from(toBinary(StatusSchema, status));
}

/** Decodes the request of a call. Throws INVALID_ARGUMENT, naming the field, for anything the contract forbids. */
export function readRequest(method: DescMethod, bytes: Uint8Array): Message {
  const message = decodeBinary(method.input, bytes);
  if (!hasUpdateMask(method.input)) return message;
  const mask = (message as Message & { updateMask?: FieldMask }).updateMask;
  if (!mask || mask.paths.length === 0) throw invalidArgument('update_mask is required');
  mask.paths = checkMask(method, mask.paths);
  return message;
}

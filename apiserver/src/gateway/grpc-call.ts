// One gRPC call as a call of the data plane: its metadata, its context, its errors.
import { isMessage, type DescMethod, type Message } from '@bufbuild/protobuf';
import type { FieldMask } from '@bufbuild/protobuf/wkt';
import { Metadata, type StatusObject } from '@grpc/grpc-js';
import { codes, invalidArgument, toKelletError, type KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import type { Logger } from '../platform/logger.ts';
import type { CallContext, Caller } from '../platform/rpc.ts';
import { plainAddress } from './authorize.ts';
import { requestIdOf, requestMetadata } from './metadata.ts';
import { checkText } from './strict-json.ts';
import { checkMask, hasUpdateMask } from './update-mask.ts';

/** What is used of a grpc-js call, whichever of the four kinds it is. */
export interface GrpcCall {
  readonly metadata: Metadata;
  readonly cancelled: boolean;
  getPeer(): string;
  on(event: 'cancelled', listener: () => void): unknown;
}

/** The first value of a metadata key as text. */
export function metadataText(metadata: Metadata, name: string): string | undefined {
  const value = metadata.get(name)[0];
  return value === undefined ? undefined : value.toString();
}

/** The peer's address without its port. */
export function peerAddress(peer: string): string {
  return plainAddress(peer.replace(/:\d+$/, '').replace(/^\[|\]$/g, ''));
}

/** A call's context; `finish` is called when the response has gone out. */
export class GrpcContext implements CallContext {
  readonly caller: Caller;
  readonly tenantId: string;
  readonly requestId: string;
  readonly address: string;
  readonly metadata: ReadonlyMap<string, string>;
  readonly responseMetadata: Map<string, string>;
  private readonly controller = new AbortController();
  private readonly afterwards: (() => void)[] = [];
  private isFinished = false;

  constructor(call: GrpcCall, caller: Caller, requestId: string, responseMetadata: Map<string, string>) {
    this.caller = caller;
    this.tenantId = caller.tenantId;
    this.requestId = requestId;
    this.address = peerAddress(call.getPeer());
    this.responseMetadata = responseMetadata;
    const names = Object.keys(call.metadata.getMap());
    this.metadata = requestMetadata(
      names.map((name) => [
        name,
        call.metadata
          .get(name)
          .map((value) => (typeof value === 'string' ? value : value.toString('base64')))
          .join(', '),
      ]),
    );
    call.on('cancelled', () => this.controller.abort());
    if (call.cancelled) this.controller.abort();
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Ends the call from outside: its credential is void, or the server stops. */
  abort(): void {
    this.controller.abort();
  }

  afterResponse(run: () => void): void {
    if (this.isFinished) run();
    else this.afterwards.push(run);
  }

  finish(): void {
    this.isFinished = true;
    for (const run of this.afterwards.splice(0)) run();
  }
}

/** The request id of a call: the client's, or a new one. */
export const grpcRequestId = (metadata: Metadata): string =>
  requestIdOf(metadataText(metadata, 'x-request-id')) ?? newId();

/** Headers as grpc-js metadata. */
export function toMetadata(headers: ReadonlyMap<string, string>): Metadata {
  const metadata = new Metadata();
  for (const [name, value] of headers) metadata.set(name, value);
  return metadata;
}

/** What the client sees of anything thrown, and the error it is; an internal error is logged and shows nothing. */
export function toStatus(
  thrown: unknown,
  headers: ReadonlyMap<string, string>,
  logger: Logger,
): StatusObject & { readonly error: KelletError } {
  const error = toKelletError(thrown);
  const requestId = headers.get('x-request-id');
  if (error.code === 'INTERNAL') logger.error({ err: error.cause ?? error, request_id: requestId }, 'call failed');
  const metadata = toMetadata(headers);
  if (error.retryAfterSeconds !== undefined) metadata.set('retry-after', String(error.retryAfterSeconds));
  return { code: codes[error.code].grpc, details: error.message, metadata, error };
}

/**
 * What protobuf lets pass and the contract does not: NUL in text, and an update that does not say what it changes. Throws
 * INVALID_ARGUMENT.
 */
export function checkRequest(method: DescMethod, message: Message): void {
  checkTexts(message);
  if (!hasUpdateMask(method.input)) return;
  const mask = (message as Message & { updateMask?: FieldMask }).updateMask;
  if (!mask || mask.paths.length === 0) throw invalidArgument('update_mask is required');
  mask.paths = checkMask(method.input, mask.paths);
}

function checkTexts(value: unknown): void {
  if (typeof value === 'string') return checkText(value);
  if (typeof value !== 'object' || value === null || value instanceof Uint8Array) return;
  if (Array.isArray(value) || isMessage(value)) {
    for (const item of Object.values(value)) checkTexts(item);
    return;
  }
  // A map field or a oneof: its keys are text of the client too.
  for (const [key, item] of Object.entries(value)) {
    checkText(key);
    checkTexts(item);
  }
}

// The error catalogue: every error of the data plane is a KelletError with one of these codes.
import { shorten } from './shorten.ts';

/** A gRPC status name, as in the error body. */
export type ErrorCode = keyof typeof codes;

/** gRPC status number and HTTP status of each code (google.rpc.Code). */
export const codes = {
  CANCELLED: { grpc: 1, http: 499 },
  UNKNOWN: { grpc: 2, http: 500 },
  INVALID_ARGUMENT: { grpc: 3, http: 400 },
  DEADLINE_EXCEEDED: { grpc: 4, http: 504 },
  NOT_FOUND: { grpc: 5, http: 404 },
  ALREADY_EXISTS: { grpc: 6, http: 409 },
  PERMISSION_DENIED: { grpc: 7, http: 403 },
  RESOURCE_EXHAUSTED: { grpc: 8, http: 429 },
  FAILED_PRECONDITION: { grpc: 9, http: 400 },
  ABORTED: { grpc: 10, http: 409 },
  OUT_OF_RANGE: { grpc: 11, http: 400 },
  UNIMPLEMENTED: { grpc: 12, http: 501 },
  INTERNAL: { grpc: 13, http: 500 },
  UNAVAILABLE: { grpc: 14, http: 503 },
  DATA_LOSS: { grpc: 15, http: 500 },
  UNAUTHENTICATED: { grpc: 16, http: 401 },
} as const;

/** The names of the catalogue by gRPC status number. */
export const codeNames: ReadonlyMap<number, ErrorCode> = new Map(
  Object.entries(codes).map(([name, { grpc }]) => [grpc, name as ErrorCode]),
);

/**
 * Maximum length of a message in characters. It may quote client input and travels in a header on gRPC, where oversized
 * headers end a connection with all its calls.
 */
const maxCharacters = 500;

/** An error that a caller may see: its message is part of the response and contains no internals. */
export class KelletError extends Error {
  readonly code: ErrorCode;
  /** Seconds after which a retry makes sense; sent as the Retry-After header. */
  readonly retryAfterSeconds: number | undefined;

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; retryAfterSeconds?: number } = {}) {
    super(shorten(message, maxCharacters), { cause: options.cause });
    this.name = 'KelletError';
    this.code = code;
    this.retryAfterSeconds = options.retryAfterSeconds;
  }
}

/** Returns the error of a call that ends although a part of what it does is done: its code does not say that nothing was changed. */
export const halfDone = (message: string, cause?: KelletError): KelletError =>
  new KelletError('CANCELLED', message, { cause });

/** The request is invalid; the message names the field. */
export const invalidArgument = (message: string): KelletError => new KelletError('INVALID_ARGUMENT', message);

/**
 * The resource does not exist in this tenant. Also used for resources of other tenants, so that ids cannot be probed.
 */
export const notFound = (what: string): KelletError => new KelletError('NOT_FOUND', `${what} not found`);

/** A resource with this key already exists. */
export const alreadyExists = (message: string): KelletError => new KelletError('ALREADY_EXISTS', message);

/** The request is valid, but the state of the system or the tenant's policy does not allow it now. */
export const failedPrecondition = (message: string): KelletError => new KelletError('FAILED_PRECONDITION', message);

/** Everything of a suspended tenant is refused. */
export const tenantSuspended = (): KelletError => new KelletError('PERMISSION_DENIED', 'tenant suspended');

/** Everything of a deleted tenant is refused until its data is purged. */
export const tenantDeleted = (): KelletError => new KelletError('PERMISSION_DENIED', 'tenant deleted');

/** The caller is authenticated but not allowed to do this. */
export const permissionDenied = (message = 'permission denied'): KelletError =>
  new KelletError('PERMISSION_DENIED', message);

/** The credential is missing or invalid. */
export const unauthenticated = (message = 'a valid credential is required'): KelletError =>
  new KelletError('UNAUTHENTICATED', message);

/** A dependency is unavailable; the same request may succeed later. */
export const unavailable = (message: string, cause?: unknown): KelletError =>
  new KelletError('UNAVAILABLE', message, { cause, retryAfterSeconds: 1 });

/** A limit or quota is exhausted. */
export const resourceExhausted = (message: string, retryAfterSeconds?: number): KelletError =>
  new KelletError('RESOURCE_EXHAUSTED', message, { retryAfterSeconds });

/** PostgreSQL's codes for a NUL in a text and in JSON, which it stores in neither. */
const nulStates: readonly (string | undefined)[] = ['22021', '22P05'];

/**
 * Converts any thrown value to what a caller may see: a KelletError is returned as it is, and a NUL that no validation has found
 * becomes INVALID_ARGUMENT, because only callers send one; anything else becomes INTERNAL without details (the caller of this function
 * logs the original with the request id).
 */
export function toKelletError(thrown: unknown): KelletError {
  if (thrown instanceof KelletError) return thrown;
  if (nulStates.includes(sqlState(thrown))) {
    return new KelletError('INVALID_ARGUMENT', 'texts must not contain NUL', { cause: thrown });
  }
  return new KelletError('INTERNAL', 'internal error', { cause: thrown });
}

/** Returns PostgreSQL's error code (SQLSTATE) of a thrown value, or undefined if it is not a database error. */
export function sqlState(thrown: unknown): string | undefined {
  if (thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' && thrown.code.length === 5) {
    return thrown.code;
  }
  return undefined;
}

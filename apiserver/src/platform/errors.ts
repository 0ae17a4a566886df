// The catalogue of errors: every refusal of the data plane is a KelletError with one of these codes (SPEC, Errors).
import { shorten } from './shorten.ts';

/** A gRPC status name as it stands in the error body. */
export type ErrorCode = keyof typeof codes;

/** Code → gRPC status number and HTTP status (SPEC, Errors; google.rpc.Code for those the spec does not list). */
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

/** The catalogue's names by gRPC status number. */
export const codeNames: ReadonlyMap<number, ErrorCode> = new Map(
  Object.entries(codes).map(([name, { grpc }]) => [grpc, name as ErrorCode]),
);

/**
 * The most characters of a message. What a client sent may stand in it, and on gRPC it travels in a header: a connection ends
 * with all its calls when those are too large.
 */
const mostCharacters = 500;

/** An error that a caller may see: the message is part of the answer and holds no internals. */
export class KelletError extends Error {
  readonly code: ErrorCode;
  /** Seconds after which a retry makes sense; becomes the Retry-After header. */
  readonly retryAfterSeconds: number | undefined;

  constructor(code: ErrorCode, message: string, options: { cause?: unknown; retryAfterSeconds?: number } = {}) {
    super(shorten(message, mostCharacters), { cause: options.cause });
    this.name = 'KelletError';
    this.code = code;
    this.retryAfterSeconds = options.retryAfterSeconds;
  }
}

/** The request itself is wrong; the message names the field. */
export const invalidArgument = (message: string): KelletError => new KelletError('INVALID_ARGUMENT', message);

/** No such resource for this tenant: also said of another tenant's, so that ids cannot be probed. */
export const notFound = (what: string): KelletError => new KelletError('NOT_FOUND', `${what} not found`);

/** A resource with this key exists already. */
export const alreadyExists = (message: string): KelletError => new KelletError('ALREADY_EXISTS', message);

/** The request is well formed, but the state of the system or the tenant's policy does not allow it now. */
export const failedPrecondition = (message: string): KelletError => new KelletError('FAILED_PRECONDITION', message);

/** The caller is known and may not do this. */
export const permissionDenied = (message = 'permission denied'): KelletError =>
  new KelletError('PERMISSION_DENIED', message);

/** No credential, or one that does not hold. */
export const unauthenticated = (message = 'a valid credential is required'): KelletError =>
  new KelletError('UNAUTHENTICATED', message);

/** A dependency is away; the same request may succeed later. */
export const unavailable = (message: string, cause?: unknown): KelletError =>
  new KelletError('UNAVAILABLE', message, { cause, retryAfterSeconds: 1 });

/** A limit or a quota is used up. */
export const resourceExhausted = (message: string, retryAfterSeconds?: number): KelletError =>
  new KelletError('RESOURCE_EXHAUSTED', message, { retryAfterSeconds });

/**
 * What a caller may learn of any thrown value: a KelletError as it is; everything else becomes INTERNAL without details
 * (the caller logs the original with the request id).
 */
export function toKelletError(thrown: unknown): KelletError {
  if (thrown instanceof KelletError) return thrown;
  return new KelletError('INTERNAL', 'internal error', { cause: thrown });
}

/** PostgreSQL's error code (SQLSTATE) of a thrown value, if it is one of the database's errors. */
export function sqlState(thrown: unknown): string | undefined {
  if (thrown instanceof Error && 'code' in thrown && typeof thrown.code === 'string' && thrown.code.length === 5) {
    return thrown.code;
  }
  return undefined;
}

// Errors of the platform and of the connection to it, and how a device reacts to each.

/** An error of the platform, by the name of its gRPC status, or of the connection (`UNAVAILABLE`). */
export class DeviceError extends Error {
  /** Name of a gRPC status, such as `NOT_FOUND`. */
  readonly code: string;
  /** Seconds after which the platform wants to be asked again. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    code: string,
    message: string,
    options: { retryAfterSeconds?: number | undefined; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.name = 'DeviceError';
    this.code = code;
    this.retryAfterSeconds = options.retryAfterSeconds;
  }
}

/** Returns an error of the connection. */
export const unavailable = (message: string, cause?: unknown): DeviceError =>
  new DeviceError('UNAVAILABLE', message, { cause });

/**
 * What a device does after an error: `retry` after a growing pause; `wait` for the longest pause, because somebody has
 * to act first (a suspended tenant); `stop`, because this key is no longer valid; or take it as final (`refused`).
 */
export type Reaction = 'retry' | 'wait' | 'stop' | 'refused';

const reactions: Readonly<Record<string, Reaction>> = {
  UNAUTHENTICATED: 'stop',
  PERMISSION_DENIED: 'wait',
  INVALID_ARGUMENT: 'refused',
  OUT_OF_RANGE: 'refused',
  NOT_FOUND: 'refused',
  ALREADY_EXISTS: 'refused',
  FAILED_PRECONDITION: 'refused',
  UNIMPLEMENTED: 'refused',
};

/** Returns the reaction to an error. Anything that is not an error of the platform is retried. */
export const reactionTo = (error: unknown): Reaction =>
  (error instanceof DeviceError ? reactions[error.code] : undefined) ?? 'retry';

const codesOfStatus: Readonly<Record<number, string>> = { 413: 'INVALID_ARGUMENT', 429: 'RESOURCE_EXHAUSTED' };

/**
 * Returns the error of an HTTP response. A status without a body of the platform comes from an intermediary: the
 * platform is not available, whatever the status says.
 */
export function httpError(status: number, body: unknown, retryAfter: string | undefined): DeviceError {
  const { code, message } = (typeof body === 'object' && body !== null ? body : {}) as Record<string, unknown>;
  const retryAfterSeconds = retryAfter !== undefined && /^\d{1,9}$/.test(retryAfter) ? Number(retryAfter) : undefined;
  const known = codesOfStatus[status] ?? (typeof code === 'string' && /^[A-Z_]+$/.test(code) ? code : 'UNAVAILABLE');
  const text = typeof message === 'string' ? message : 'no message';
  return new DeviceError(known, `${status} ${text}`, { retryAfterSeconds });
}

/** Names of gRPC statuses by number. */
export const statusNames: readonly string[] = [
  ...['OK', 'CANCELLED', 'UNKNOWN', 'INVALID_ARGUMENT', 'DEADLINE_EXCEEDED', 'NOT_FOUND', 'ALREADY_EXISTS'],
  ...['PERMISSION_DENIED', 'RESOURCE_EXHAUSTED', 'FAILED_PRECONDITION', 'ABORTED', 'OUT_OF_RANGE', 'UNIMPLEMENTED'],
  ...['INTERNAL', 'UNAVAILABLE', 'DATA_LOSS', 'UNAUTHENTICATED'],
];

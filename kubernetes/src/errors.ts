// Errors of the Kubernetes API, and what they mean to the caller.

/** The relevant part of Kubernetes' Status object. */
export interface Status {
  message?: string;
  reason?: string;
  code?: number;
  details?: { name?: string; causes?: readonly StatusCause[]; retryAfterSeconds?: number };
}

/** A field that is invalid or owned by another manager. */
export interface StatusCause {
  reason?: string;
  message?: string;
  field?: string;
}

/** What the failure of a request means. */
export type Failure =
  /** The credential could not be read or obtained; nothing was sent. */
  | 'noCredential'
  /** There is no connection; nothing was sent. */
  | 'unreachable'
  /** There was no complete and valid response in time: the request may have been carried out. */
  | 'unknownOutcome'
  /** The response is larger than the caller reads. */
  | 'tooLarge'
  | 'unauthenticated'
  | 'forbidden'
  | 'notFound'
  | 'alreadyExists'
  /** The object has been changed since it was read, or another manager owns a field. */
  | 'conflict'
  /** A resource version is too old to continue from. */
  | 'expired'
  | 'invalid'
  | 'throttled'
  | 'serverError'
  /** Any other response. */
  | 'other';

const failures: Readonly<Record<number, Failure>> = {
  400: 'invalid',
  401: 'unauthenticated',
  403: 'forbidden',
  404: 'notFound',
  409: 'conflict',
  410: 'expired',
  422: 'invalid',
  429: 'throttled',
};

/** A failed request. */
export class KubernetesError extends Error {
  readonly failure: Failure;
  /** HTTP status; 0 without a response. */
  readonly status: number;
  /** Kubernetes' reason, such as NotFound, AlreadyExists, Conflict, Expired. */
  readonly reason: string;
  /** One entry per field that is invalid or owned by another manager. */
  readonly causes: readonly StatusCause[];
  /** Name of the object that the error is about; undefined if the server does not know its kind. */
  readonly objectName: string | undefined;
  /** Seconds after which the server asked to retry. */
  readonly retryAfterSeconds: number | undefined;

  constructor(
    status: number,
    { message, reason = '', details }: Status = {},
    options: { failure?: Failure; retryAfter?: string | undefined; cause?: unknown } = {},
  ) {
    super(message || `the Kubernetes API returned ${status}`, { cause: options.cause });
    this.name = 'KubernetesError';
    const known = reason === 'AlreadyExists' ? 'alreadyExists' : failures[status];
    this.failure = options.failure ?? known ?? (status >= 500 ? 'serverError' : 'other');
    this.status = status;
    this.reason = reason;
    this.causes = details?.causes ?? [];
    this.objectName = details?.name;
    const seconds = details?.retryAfterSeconds ?? Number(options.retryAfter);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : undefined;
  }
}

/** Returns the failure of a thrown KubernetesError, or undefined for anything else. */
export function failureOf(error: unknown): Failure | undefined {
  return error instanceof KubernetesError ? error.failure : undefined;
}

/** Errors of establishing a connection, before a request is sent. */
const connectionErrors = new Set([
  ...['EAI_AGAIN', 'ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'ENOTFOUND', 'UND_ERR_CONNECT_TIMEOUT'],
]);

/** Returns the error of a request without a valid response; a KubernetesError is returned as it is. */
export function transportError(cause: unknown): KubernetesError {
  if (cause instanceof KubernetesError) return cause;
  const { code = '', message } = cause as { code?: string; message?: string };
  const failure = connectionErrors.has(code) ? 'unreachable' : 'unknownOutcome';
  return new KubernetesError(0, { message: message || code || String(cause) }, { failure, cause });
}

/** Returns the error of a response; `text` is its body, which is a Status unless a proxy responded. */
export function responseError(status: number, text: string, retryAfter: string | undefined): KubernetesError {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    // Not a Status.
  }
  const isStatus = typeof body === 'object' && body !== null;
  return new KubernetesError(status, isStatus ? (body as Status) : { message: text.trim().slice(0, 200) }, {
    retryAfter,
  });
}

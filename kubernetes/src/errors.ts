// Errors of the Kubernetes API.

/** The relevant part of Kubernetes' Status object. */
export interface Status {
  message?: string;
  reason?: string;
  code?: number;
  details?: { retryAfterSeconds?: number };
}

/** An error response of the API server. */
export class KubernetesError extends Error {
  /** HTTP status code. */
  readonly code: number;
  /** Kubernetes' reason, such as NotFound, AlreadyExists, Conflict, Expired. */
  readonly reason: string;
  /** Seconds after which the server asked to retry. */
  readonly retryAfterSeconds: number | undefined;

  constructor(code: number, status: Status, retryAfter?: string) {
    super(status.message ?? `the Kubernetes API returned ${code}`);
    this.name = 'KubernetesError';
    this.code = code;
    this.reason = status.reason ?? '';
    const seconds = status.details?.retryAfterSeconds ?? Number(retryAfter);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : undefined;
  }
}

/** Reports whether the object does not exist. */
export function isNotFound(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 404;
}

/** Reports whether the caller lacks permission. */
export function isForbidden(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 403;
}

/** Reports whether the object has been changed since it was read. */
export function isConflict(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 409 && error.reason !== 'AlreadyExists';
}

/** Reports whether an object with that name already exists. */
export function isAlreadyExists(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 409 && error.reason === 'AlreadyExists';
}

/** Reports whether a resource version is too old to resume from. */
export function isExpired(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 410;
}

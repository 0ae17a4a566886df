// What the Kubernetes API answers when it refuses.

/** The part of Kubernetes' Status object that matters. */
export interface Status {
  message?: string;
  reason?: string;
  code?: number;
  details?: { retryAfterSeconds?: number };
}

/** An answer of the API server that is not a success. */
export class KubernetesError extends Error {
  /** HTTP status code. */
  readonly code: number;
  /** Kubernetes' reason, such as NotFound, AlreadyExists, Conflict, Expired. */
  readonly reason: string;
  /** Seconds that the server asked to wait, if it did. */
  readonly retryAfterSeconds: number | undefined;

  constructor(code: number, status: Status, retryAfter?: string) {
    super(status.message ?? `the Kubernetes API answered ${code}`);
    this.name = 'KubernetesError';
    this.code = code;
    this.reason = status.reason ?? '';
    const seconds = status.details?.retryAfterSeconds ?? Number(retryAfter);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : undefined;
  }
}

/** Reports whether the object is not there. */
export function isNotFound(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 404;
}

/** Reports whether the caller lacks the right. */
export function isForbidden(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 403;
}

/** Reports whether somebody else changed the object since it was read. */
export function isConflict(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 409 && error.reason !== 'AlreadyExists';
}

/** Reports whether an object of that name is there already. */
export function isAlreadyExists(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 409 && error.reason === 'AlreadyExists';
}

/** Reports whether a resource version is too old to resume from. */
export function isExpired(error: unknown): boolean {
  return error instanceof KubernetesError && error.code === 410;
}

// What the API says when it refuses, as exceptions.

/** The body of every answer that is no success. */
export interface ErrorBody {
  /** A gRPC status name; the number 429 when the rate limit rejects. */
  code: string | number;
  message: string;
  request_id: string;
}

/** An answer that is no success. */
export class ApiError extends Error {
  /** HTTP status. */
  readonly status: number;
  /** A gRPC status name, such as `NOT_FOUND`; `RESOURCE_EXHAUSTED` also for a rejection by the rate limit. */
  readonly code: string;
  /** Under which the server's log has the request. */
  readonly requestId: string;
  /** Seconds after which a retry makes sense. */
  readonly retryAfterSeconds: number | undefined;

  constructor(request: Request, response: Response, body: Partial<ErrorBody>) {
    const message = body.message ?? (response.statusText || 'no message');
    super(`${request.method} ${new URL(request.url).pathname}: ${response.status} ${message}`);
    this.name = 'ApiError';
    this.status = response.status;
    this.code = body.code === 429 ? 'RESOURCE_EXHAUSTED' : String(body.code ?? 'UNKNOWN');
    this.requestId = body.request_id ?? response.headers.get('x-request-id') ?? '';
    this.retryAfterSeconds = retryAfter(response);
  }
}

/** Reads an answer that is no success. */
export async function apiError(request: Request, response: Response): Promise<ApiError> {
  let body: Partial<ErrorBody> = {};
  try {
    const parsed: unknown = await response.json();
    if (typeof parsed === 'object' && parsed !== null) body = parsed;
  } catch {
    // Not ours: something between the client and the API has answered.
  }
  return new ApiError(request, response, body);
}

/** The seconds of `Retry-After`, when it is a number. */
export function retryAfter(response: Response): number | undefined {
  const text = response.headers.get('retry-after');
  return text !== null && /^\d+$/.test(text) ? Number(text) : undefined;
}

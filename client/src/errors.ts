// Errors of the API as exceptions.

/** Body of every error response. */
export interface ErrorBody {
  /** gRPC status name, or the number 429 when the rate limit is exceeded. */
  code: string | number;
  message: string;
  request_id: string;
}

/** An error response. */
export class ApiError extends Error {
  /** HTTP status. */
  readonly status: number;
  /** gRPC status name, such as `NOT_FOUND`. Also `RESOURCE_EXHAUSTED` when the rate limit is exceeded. */
  readonly code: string;
  /** Id of the request in the server's log. */
  readonly requestId: string;
  /** Seconds to wait before a retry. */
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

/** Reads an error response. */
export async function apiError(request: Request, response: Response): Promise<ApiError> {
  let body: Partial<ErrorBody> = {};
  try {
    const parsed: unknown = await response.json();
    if (typeof parsed === 'object' && parsed !== null) body = parsed;
  } catch {
    // Not a response of the API, but of an intermediary.
  }
  return new ApiError(request, response, body);
}

/** Returns the seconds of `Retry-After` if it is a number. */
export function retryAfter(response: Response): number | undefined {
  const text = response.headers.get('retry-after');
  return text !== null && /^\d+$/.test(text) ? Number(text) : undefined;
}

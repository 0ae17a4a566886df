// Spans of the HTTP requests that the data plane sends. Attributes follow OpenTelemetry's semantic conventions for HTTP
// clients.
import type { Attributes } from '@opentelemetry/api';
import { beginClientSpan, endTrace, inTrace } from '../observability/tracing.ts';

/** A request to another system. */
export interface OutgoingRequest {
  readonly method: string;
  readonly url: URL;
  /** Its path with placeholders in braces for the variable parts; names the span. */
  readonly template?: string;
}

/**
 * Runs a request in its own span if spans are exported; `work` reports the status once known. A status of 400 or more
 * is a failure, except 404 for a GET; so is an exception. The span contains no query, user, password or headers, since
 * each may be secret.
 */
export async function traceRequestTo<T>(
  { method, url, template }: OutgoingRequest,
  work: (setStatus: (status: number) => void) => Promise<T>,
): Promise<T> {
  const attributesOf = (): Attributes => ({
    'http.request.method': method,
    'server.address': url.hostname,
    'server.port': Number(url.port) || (url.protocol === 'https:' ? 443 : 80),
    'url.full': url.origin + url.pathname,
    ...(template === undefined ? {} : { 'url.template': template }),
  });
  const trace = beginClientSpan(template === undefined ? method : `${method} ${template}`, attributesOf, true);
  if (!trace) return work(() => undefined);
  let status: number | undefined;
  const end = (thrown?: string): void => {
    const isFailure = status !== undefined && status >= 400 && !(status === 404 && method === 'GET');
    endTrace(
      trace,
      status === undefined ? {} : { 'http.response.status_code': status },
      isFailure ? String(status) : thrown,
    );
  };
  try {
    const result = await inTrace(trace, () => work((setStatus) => (status = setStatus)));
    end();
    return result;
  } catch (error) {
    end(errorType(error));
    throw error;
  }
}

/** Returns a low-cardinality name of the error: the system's or fetch's code, else the class. */
function errorType(error: unknown): string {
  if (!(error instanceof Error)) return 'error';
  if ('code' in error && typeof error.code === 'string') return error.code;
  return error.cause instanceof Error ? errorType(error.cause) : error.name;
}

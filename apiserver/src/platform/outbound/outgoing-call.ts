// Spans around the HTTP requests that the data plane sends. Attributes are OpenTelemetry's semantic conventions for HTTP clients.
import type { Attributes } from '@opentelemetry/api';
import { beginClientSpan, endTrace, inTrace } from '../observability/tracing.ts';

/** A request to another system. */
export interface OutgoingRequest {
  readonly method: string;
  readonly url: URL;
  /** Its path with a name in braces for what differs from request to request: spans are named by it. */
  readonly template?: string;
}

/**
 * Runs a request in a span of its own when spans are sent; `work` says the status when it knows it. What was answered with
 * 400 or more has failed, except that a GET may find nothing; so has what throws. The span holds neither the query, nor user
 * and password, nor headers: each may be secret.
 */
export async function traceRequestTo<T>(
  { method, url, template }: OutgoingRequest,
  work: (answered: (status: number) => void) => Promise<T>,
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
    const result = await inTrace(trace, () => work((answered) => (status = answered)));
    end();
    return result;
  } catch (error) {
    end(errorType(error));
    throw error;
  }
}

/** What failed, by a name of few values: the code of the system or of fetch, else the class. */
function errorType(error: unknown): string {
  if (!(error instanceof Error)) return 'error';
  if ('code' in error && typeof error.code === 'string') return error.code;
  return error.cause instanceof Error ? errorType(error.cause) : error.name;
}

// Checks responses against the OpenAPI document and the rules for all responses.
import type { RouteTable } from '../../apiserver/src/gateway/transcoding/routes.ts';
import type { FuzzResponse } from './connection.ts';
import { type FuzzRequest, targetOf } from './request.ts';

/** Documented statuses by operation. */
export type Documented = ReadonlyMap<string, ReadonlySet<number>>;

interface OpenapiDocument {
  paths: Record<string, Record<string, { operationId: string; responses: Record<string, unknown> }>>;
}

/** Reads the documented statuses by operationId, and by `METHOD /path` for the gateway's own routes. */
export function documentedStatuses(document: OpenapiDocument): Documented {
  const statuses = new Map<string, ReadonlySet<number>>();
  for (const [path, item] of Object.entries(document.paths)) {
    for (const [verb, { operationId, responses }] of Object.entries(item)) {
      const set = new Set(Object.keys(responses).map(Number));
      statuses.set(operationId, set);
      statuses.set(`${verb.toUpperCase()} ${path}`, set);
    }
  }
  return statuses;
}

/** Words that would reveal internals. */
const internals =
  /node_modules|\.ts:\d|\bat [\w.]+ \(|SELECT |INSERT |pg_|postgres:\/\/|ECONN|TypeError|undefined is not/;

/** Returns the problem of a response, or undefined. A preflight is 204, an unknown route 404. */
export function complaint(
  request: FuzzRequest,
  response: FuzzResponse,
  routes: RouteTable,
  documented: Documented,
): string | undefined {
  const { status, headers, body } = response;
  if (headers.get('x-request-id') !== request.id)
    return `its request id is ${headers.get('x-request-id') ?? 'missing'}`;
  const path = targetOf(request).split('?')[0]!;
  // Calls do not support HEAD; other routes handle it like GET.
  const verb = request.method === 'HEAD' && !routes.match('GET', path) ? 'GET' : request.method;
  const names = request.headers.map(([name]) => name);
  const isPreflight = verb === 'OPTIONS' && names.includes('origin') && names.includes('access-control-request-method');
  const route = routes.match(verb, path)?.route.method.name;
  const allowed = isPreflight ? new Set([204]) : (documented.get(route ?? `${verb} ${path}`) ?? new Set([404]));
  if (!allowed.has(status)) return `${status} is not documented for ${route ?? path}`;
  if (status >= 500 && status !== 501 && path !== '/readyz') return `a server error: ${body.slice(0, 200)}`;
  if (status < 400 || request.method === 'HEAD') return undefined;
  if (internals.test(body)) return `it shows internals: ${body.slice(0, 200)}`;
  return errorComplaint(response, request.id);
}

/** Returns the problem of an error body, or undefined. */
function errorComplaint({ headers, body }: FuzzResponse, id: string): string | undefined {
  if (headers.get('content-type') !== 'application/json')
    return `an error as ${headers.get('content-type') ?? 'nothing'}`;
  try {
    const error = JSON.parse(body) as { code?: unknown; message?: unknown; request_id?: unknown };
    const isWhole = error.code !== undefined && typeof error.message === 'string' && error.message !== '';
    return isWhole && error.request_id === id ? undefined : `an error body without its fields: ${body.slice(0, 200)}`;
  } catch {
    return `an error body that is not JSON: ${body.slice(0, 200)}`;
  }
}

// The gateway's own routes, which are not service calls: health, callbacks, the OpenAPI document.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type AddressOf, addressOfRequest } from '../admission/client-address.ts';
import type { BodyBounds, BodyMemory } from '../memory/body-memory.ts';
import type { Callbacks } from './callbacks.ts';
import { excludedNames, type Health } from './health.ts';
import { type DocumentRoute, openapiPath } from './openapi-route.ts';
import { readBody } from './rest-call.ts';
import { sendError, sendResponse } from './rest-response.ts';

/** The error for unknown routes. */
export const notFoundRoute = (): KelletError => new KelletError('NOT_FOUND', 'route not found');

const callbackPath = '/api/v1/callbacks/arc';
/** A callback becomes one broker message including headers, whose maximum size is one mebibyte by default. */
const callbackBodyLimit = 1024 * 1024 - 4096;

/**
 * Serves /healthz and /readyz, on the REST port and on the metrics port of every process. Returns false for any other
 * path.
 */
export function handleHealth(
  health: Health,
  request: IncomingMessage,
  response: ServerResponse,
  path: string,
): boolean {
  if (request.method !== 'GET' && request.method !== 'HEAD') return false;
  if (path === '/healthz') {
    sendJson(response, 200, { status: 'ok' });
    return true;
  }
  if (path !== '/readyz') return false;
  const query = request.url!.slice(path.length + 1);
  void health
    .readiness(excludedNames(query))
    .then(({ isReady, body }) => sendJson(response, isReady ? 200 : 503, body));
  return true;
}

/** Writes a JSON response. */
export const sendJson = (response: ServerResponse, status: number, body: unknown): void =>
  sendResponse(response, status, [], 'application/json', JSON.stringify(body));

/** Dependencies of the cold routes. */
export interface ColdParts {
  readonly health: Health;
  readonly callbacks: Callbacks;
  readonly document: DocumentRoute;
  readonly memory: BodyMemory;
  readonly addressOf: AddressOf;
  readonly logger: Logger;
}

/** Serves the cold routes. Returns false for any other path, leaving the response untouched. */
export function coldRoutes({
  health,
  callbacks,
  document,
  memory,
  addressOf,
  logger,
}: ColdParts): (request: IncomingMessage, response: ServerResponse, path: string) => boolean {
  const fail = (response: ServerResponse) => (thrown: unknown) => {
    sendError(response, thrown, String(response.getHeader('x-request-id')), [], logger);
  };
  return (request, response, path) => {
    const { method } = request;
    if (path === callbackPath && method === 'POST') {
      takeCallback(callbacks, request, memory.ofStranger(addressOfRequest(addressOf, request), callbackBodyLimit))
        .then(() => sendJson(response, 200, {}))
        .catch(fail(response));
      return true;
    }
    if (path === openapiPath && (method === 'GET' || method === 'HEAD')) {
      document(request, response).catch(fail(response));
      return true;
    }
    return handleHealth(health, request, response, path);
  };
}

async function takeCallback(callbacks: Callbacks, request: IncomingMessage, bounds: BodyBounds): Promise<void> {
  let body: Uint8Array;
  try {
    body = await readBody(request, bounds);
  } catch (error) {
    callbacks.reject('unreadable');
    throw error;
  }
  await callbacks.receive(request.headers['x-arc-signature'] as string | undefined, body);
}

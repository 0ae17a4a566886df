// The routes of the gateway itself, which are no calls of a service: health and the processor's callback.
import type { IncomingMessage, ServerResponse } from 'node:http';
import express, { type NextFunction, type Request, type Response } from 'express';
import { invalidArgument, KelletError } from '../platform/errors.ts';
import type { Logger } from '../platform/logger.ts';
import type { Callbacks } from './callbacks.ts';
import { excludedNames, type Health } from './health.ts';
import { answerError } from './rest-answer.ts';

/** SPEC, Errors, case rule 1. */
export const notFoundRoute = (): KelletError => new KelletError('NOT_FOUND', 'route not found');

const callbackPath = '/api/v1/callbacks/arc';
const callbackBodyLimit = '1mb';

/** /healthz and /readyz, for the REST port and for the metrics port of every process. */
export function healthRoutes(health: Health): express.Router {
  const router = express.Router({ caseSensitive: true, strict: true });
  router.get('/healthz', (_request, response) => void response.json({ status: 'ok' }));
  router.get('/readyz', async (request, response) => {
    const query = request.url.split('?')[1] ?? '';
    const { isReady, body } = await health.readiness(excludedNames(query));
    response.status(isReady ? 200 : 503).json(body);
  });
  return router;
}

/** Answers the cold routes; says false, without touching the response, for every other path. */
export function coldRoutes(
  health: Health,
  callbacks: Callbacks,
  logger: Logger,
): (request: IncomingMessage, response: ServerResponse, path: string) => boolean {
  const app = express();
  app.disable('x-powered-by');
  app.disable('etag');
  app.use(healthRoutes(health));
  app.post(
    callbackPath,
    express.raw({ type: () => true, limit: callbackBodyLimit, inflate: false }),
    async (request, response) => {
      const body: unknown = request.body;
      await callbacks.receive(request.get('x-arc-signature'), body instanceof Uint8Array ? body : new Uint8Array());
      response.json({});
    },
  );
  app.use(() => {
    throw notFoundRoute();
  });
  app.use((thrown: unknown, _request: Request, response: Response, _next: NextFunction) => {
    answerError(response, asKelletError(thrown), String(response.getHeader('x-request-id')), [], logger);
  });
  const paths = new Set(['/healthz', '/readyz', callbackPath]);
  return (request, response, path) => {
    if (!paths.has(path)) return false;
    app(request, response);
    return true;
  };
}

/** The body reader's own errors carry an HTTP status. */
function asKelletError(thrown: unknown): unknown {
  if (thrown instanceof Error && 'status' in thrown && typeof thrown.status === 'number' && thrown.status < 500) {
    return invalidArgument('the body cannot be read');
  }
  return thrown;
}

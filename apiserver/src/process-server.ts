// The port of every process for operations: metrics, liveness and readiness.
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { handleHealth, sendJson, notFoundRoute } from './gateway/http/cold-routes.ts';
import type { Health } from './gateway/http/health.ts';
import { HttpServer } from './gateway/http/http-server.ts';
import { sendResponse, sendError } from './gateway/http/rest-response.ts';
import { newId } from './platform/ids.ts';
import type { Logger } from './platform/observability/logger.ts';
import type { Registry } from './platform/observability/metrics.ts';

/**
 * Time for which all scrapes get the same text. The port needs no credential, and collecting takes milliseconds: without
 * this, a client with many connections could occupy the process and its memory.
 */
const sharedMilliseconds = 200;

/** Serves /metrics, /healthz and /readyz. Alive immediately, ready only after `started`. */
export class ProcessServer {
  private readonly server: HttpServer;
  private readonly health: Health;
  private readonly metrics: Registry;
  private ready = false;
  private collected: { readonly at: number; readonly text: Promise<Buffer> } | undefined;

  constructor(health: Health, metrics: Registry, logger: Logger) {
    this.health = health;
    this.metrics = metrics;
    this.server = new HttpServer((request, response) => {
      this.handle(request, response).catch((error: unknown) => sendError(response, error, newId(), [], logger));
    });
  }

  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [path] = request.url!.split('?', 1);
    if (path === '/readyz' && !this.ready) return sendJson(response, 503, { startup: 'unhealthy: starting' });
    if (handleHealth(this.health, request, response, path!)) return;
    if (path !== '/metrics' || (request.method !== 'GET' && request.method !== 'HEAD')) throw notFoundRoute();
    sendResponse(response, 200, [], this.metrics.contentType, await this.exposition());
  }

  /** Returns the text of the metrics, collected anew for a scrape unless another has just done so. */
  private exposition(): Promise<Buffer> {
    const now = performance.now();
    if (!this.collected || now - this.collected.at > sharedMilliseconds) {
      const text = this.metrics.metrics().then((collected) => Buffer.from(collected));
      this.collected = { at: now, text };
    }
    return this.collected.text;
  }

  /** Listens; rejects when the port is taken. */
  async listen(host: string, port: number): Promise<void> {
    this.server.listen(port, host);
    await once(this.server, 'listening');
  }

  /** Called when everything serves: from now on the dependencies decide about readiness. */
  started(): void {
    this.ready = true;
  }

  /** Closes, after a moment for pending responses. */
  async close(): Promise<void> {
    await this.server.closeWithin(500);
  }
}

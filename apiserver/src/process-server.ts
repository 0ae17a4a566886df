// The port of every process for operations: metrics, liveness, readiness, and with a secret the log level and profiles.
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Diagnostics } from './diagnostics/diagnostics.ts';
import { handleHealth, notFoundRoute, sendJson } from './gateway/http/gateway-routes.ts';
import type { Health } from './gateway/http/health.ts';
import { HttpServer } from './gateway/http/http-server.ts';
import { sendError, sendResponse } from './gateway/http/rest-response.ts';
import { sleep } from './platform/clock.ts';
import { newId } from './platform/ids.ts';
import type { Logger } from './platform/observability/logger.ts';
import type { Registry } from './platform/observability/metrics.ts';

/**
 * Rest between two collections of the metrics. The port needs no credential, and collecting takes milliseconds: without
 * this, a client with many connections could occupy the process and its memory.
 */
const restMilliseconds = 50;

/** Serves /metrics, /healthz, /readyz and the routes of diagnostics. Alive immediately, ready only after `started`. */
export class ProcessServer {
  private readonly server: HttpServer;
  private readonly health: Health;
  private readonly metrics: Registry;
  private readonly diagnostics: Diagnostics | undefined;
  private ready = false;
  /** The collection that has not begun, for all scrapes that wait for it. */
  private next: Promise<Buffer> | undefined;
  /** Resolves when another collection may begin. */
  private rested: Promise<unknown> = Promise.resolve();

  /** Without diagnostics, their routes do not exist. */
  constructor(health: Health, metrics: Registry, logger: Logger, diagnostics?: Diagnostics) {
    this.health = health;
    this.metrics = metrics;
    this.diagnostics = diagnostics;
    this.server = new HttpServer((request, response) => {
      this.handle(request, response).catch((error: unknown) => sendError(response, error, newId(), [], logger));
    });
  }

  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [path] = request.url!.split('?', 1);
    if (path === '/readyz' && !this.ready) return sendJson(response, 503, { startup: 'unhealthy: starting' });
    if (handleHealth(this.health, request, response, path!)) return;
    if (await this.diagnostics?.handle(request, response, path!)) return;
    if (path !== '/metrics' || (request.method !== 'GET' && request.method !== 'HEAD')) throw notFoundRoute();
    sendResponse(response, 200, [], this.metrics.contentType, await this.exposition());
  }

  /** Returns the text of the metrics, collected after this call and shared with all others that wait for it. */
  private exposition(): Promise<Buffer> {
    return (this.next ??= this.collect());
  }

  private async collect(): Promise<Buffer> {
    await this.rested;
    this.next = undefined;
    const text = this.metrics.metrics();
    this.rested = Promise.allSettled([text]).then(() => sleep(restMilliseconds));
    return Buffer.from(await text);
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

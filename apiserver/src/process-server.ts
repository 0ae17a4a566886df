// The port every process has for its keepers: metrics, liveness and readiness (API.md, ports).
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import express from 'express';
import { healthRoutes } from './gateway/cold-routes.ts';
import type { Health } from './gateway/health.ts';
import type { Registry } from './platform/metrics.ts';

/** /metrics, /healthz and /readyz. Alive from the first moment, ready only once `started` was called. */
export class ProcessServer {
  private readonly server: Server;
  private ready = false;

  constructor(health: Health, metrics: Registry) {
    const app = express();
    app.disable('x-powered-by');
    app.get('/metrics', async (_request, response) => {
      response.type(metrics.contentType).send(await metrics.metrics());
    });
    app.get('/readyz', (_request, response, next) => {
      if (this.ready) next();
      else response.status(503).json({ startup: 'unhealthy: starting' });
    });
    app.use(healthRoutes(health));
    app.use((_request, response) => void response.status(404).json({ code: 'NOT_FOUND', message: 'route not found' }));
    this.server = createServer(app);
  }

  /** Listens; rejects when the port is taken. */
  async listen(host: string, port: number): Promise<void> {
    this.server.listen(port, host);
    await once(this.server, 'listening');
  }

  /** Everything serves: readiness is what the dependencies say. */
  started(): void {
    this.ready = true;
  }

  /** Closes at once; whoever is asking gets no answer. */
  close(): void {
    this.server.close();
    this.server.closeAllConnections();
  }
}

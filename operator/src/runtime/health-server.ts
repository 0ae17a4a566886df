// Serves /healthz, /readyz and /metrics on one port.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';

/** A named dependency: resolves when it is healthy, rejects with the reason when it is not. */
export type HealthCheck = () => Promise<void> | void;

/** A running server. */
export interface HealthServer {
  port: number;
  close(): Promise<void>;
}

/**
 * Starts the server. /healthz is 200 while the process lives; /readyz is 200 when every check passes, else 503, with a JSON
 * object of dependency → `healthy` or `unhealthy: <reason>`; a check may be left out with `?exclude=name`.
 */
export async function serveHealth(options: {
  host: string;
  port: number;
  registry: Registry;
  checks: Record<string, HealthCheck>;
}): Promise<HealthServer> {
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    const answer = (status: number, type: string, body: string): void => {
      response.writeHead(status, { 'content-type': type }).end(body);
    };
    const fail = (error: unknown): void => answer(500, 'text/plain', error instanceof Error ? error.message : 'failed');
    if (url.pathname === '/healthz') answer(200, 'text/plain; charset=utf-8', 'ok');
    else if (url.pathname === '/readyz') {
      readiness(options.checks, url.searchParams.getAll('exclude')).then(
        ({ ready, report }) => answer(ready ? 200 : 503, 'application/json', JSON.stringify(report)),
        fail,
      );
    } else if (url.pathname === '/metrics') {
      options.registry.metrics().then((text) => answer(200, options.registry.contentType, text), fail);
    } else answer(404, 'text/plain; charset=utf-8', 'not found');
  });
  server.listen(options.port, options.host);
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, close: () => close(server) };
}

/** Runs the checks and reports on each. */
export async function readiness(
  checks: Record<string, HealthCheck>,
  exclude: string[],
): Promise<{ ready: boolean; report: Record<string, string> }> {
  const entries = await Promise.all(
    Object.entries(checks)
      .filter(([name]) => !exclude.includes(name))
      .map(async ([name, check]): Promise<[string, string]> => {
        try {
          await check();
          return [name, 'healthy'];
        } catch (error) {
          return [name, `unhealthy: ${error instanceof Error ? error.message : String(error)}`];
        }
      }),
  );
  return { ready: entries.every(([, state]) => state === 'healthy'), report: Object.fromEntries(entries) };
}

async function close(server: Server): Promise<void> {
  server.close();
  server.closeAllConnections();
  await once(server, 'close');
}

// Serves /healthz, /readyz and /metrics on one port.
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Registry } from 'prom-client';

/** Check of a dependency. Rejects with the reason if it is unhealthy. */
export type HealthCheck = () => Promise<void> | void;

/** A running server. */
export interface HealthServer {
  port: number;
  close(): Promise<void>;
}

/**
 * Starts the server. /healthz returns 200 while the process is alive. /readyz returns 200 if all checks pass, else 503,
 * with a JSON object of dependency → `healthy` or `unhealthy: <reason>`; `?exclude=name` omits a check.
 */
export async function serveHealth(options: {
  host: string;
  port: number;
  registry: Registry;
  checks: Record<string, HealthCheck>;
}): Promise<HealthServer> {
  const limits = { headersTimeout: 10_000, requestTimeout: 10_000, connectionsCheckingInterval: 1000 };
  const server = createServer(limits, (request, response) => {
    // URL would throw on some targets that HTTP allows.
    const [path, query] = request.url!.split('?', 2);
    const respond = (status: number, type: string, body: string): void => {
      response.writeHead(status, { 'content-type': type }).end(body);
    };
    const fail = (error: unknown): void =>
      respond(500, 'text/plain', error instanceof Error ? error.message : 'failed');
    if (path === '/healthz') respond(200, 'text/plain; charset=utf-8', 'ok');
    else if (path === '/readyz') {
      const excluded = new URLSearchParams(query).getAll('exclude').flatMap((names) => names.split(','));
      readiness(options.checks, excluded).then(
        ({ ready, report }) => respond(ready ? 200 : 503, 'application/json', JSON.stringify(report)),
        fail,
      );
    } else if (path === '/metrics') {
      options.registry.metrics().then((text) => respond(200, options.registry.contentType, text), fail);
    } else respond(404, 'application/json', JSON.stringify({ code: 'NOT_FOUND', message: 'route not found' }));
  });
  server.maxConnections = 1000;
  server.listen(options.port, options.host);
  await once(server, 'listening');
  return { port: (server.address() as AddressInfo).port, close: () => close(server) };
}

/** Runs the checks and returns a report. */
export async function readiness(
  checks: Record<string, HealthCheck>,
  exclude: string[],
): Promise<{ ready: boolean; report: Record<string, string> }> {
  const entries = await Promise.all(
    Object.entries(checks)
      .filter(([name]) => !exclude.includes(name))
      .map(async ([name, check]): Promise<[string, string]> => {
        try {
          await inTime(check());
          return [name, 'healthy'];
        } catch (error) {
          return [name, `unhealthy: ${reasonOf(error)}`];
        }
      }),
  );
  return { ready: entries.every(([, state]) => state === 'healthy'), report: Object.fromEntries(entries) };
}

/** Rejects if the promise does not settle within a second. */
async function inTime(check: Promise<void> | void): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(new Error('no response within 1000 ms')), 1000);
  });
  await Promise.race([check, late]).finally(() => clearTimeout(timer));
}

/** Returns the error message without addresses, because /readyz needs no authentication. */
function reasonOf(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error);
  return message.replaceAll(/\S*(:\/\/|@|\d+\.\d+\.\d+\.\d+|\[[0-9a-f:]+\])\S*/gi, '…').slice(0, 120);
}

async function close(server: Server): Promise<void> {
  server.close();
  server.closeAllConnections();
  await once(server, 'close');
}

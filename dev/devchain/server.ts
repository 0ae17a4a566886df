// The HTTP server: dispatches requests to the four APIs, and simulates unavailability.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type ArcRoutes, createArcRoutes } from './arc-routes.ts';
import { handleChainTracks, HeaderStreams } from './chain-tracks-routes.ts';
import { handleControl } from './control-routes.ts';
import type { Devchain } from './devchain.ts';
import { type HttpRequest, type HttpResponse, readBody, send } from './http.ts';
import { handleNode, nodePath } from './node-routes.ts';

/** Maximum time that requests waiting for a status delay the shutdown. */
const CLOSE_MILLISECONDS = 1000;

/** A server that is not listening yet, and a function that closes it with its streams. */
export interface DevchainServer {
  readonly server: Server;
  /** Stops accepting requests, ends streams, and resolves when all requests are complete. */
  close(): Promise<void>;
}

/** Creates the server. `arcToken` is the bearer token for the processor's routes; undefined leaves them open. */
export function createDevchainServer(devchain: Devchain, arcToken: string | undefined): DevchainServer {
  const streams = new HeaderStreams(devchain);
  const arc = createArcRoutes(devchain, arcToken);
  const server = createServer((message, response) => {
    respond(devchain, arc, streams, message, response).catch((error: unknown) => {
      console.error(JSON.stringify({ level: 'error', message: 'request failed', error: String(error) }));
      if (!response.headersSent) send(response, { status: 500, body: { message: 'Internal Server Error' } });
      else response.destroy();
    });
  });
  return {
    server,
    close: () =>
      new Promise((resolve) => {
        streams.close();
        server.close(() => resolve());
        server.closeIdleConnections();
        setTimeout(() => server.closeAllConnections(), CLOSE_MILLISECONDS).unref();
      }),
  };
}

async function respond(
  devchain: Devchain,
  arc: ArcRoutes,
  streams: HeaderStreams,
  message: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const body = await readBody(message);
  if (body === undefined) {
    send(response, { status: 413, body: { message: 'Request Entity Too Large' }, headers: { connection: 'close' } });
    return;
  }
  const gone = new AbortController();
  response.on('close', () => gone.abort());
  const url = new URL(message.url ?? '/', 'http://devchain');
  const request: HttpRequest = {
    method: message.method ?? 'GET',
    path: url.pathname,
    query: url.searchParams,
    header: (name) => [message.headers[name]].flat()[0],
    body,
    signal: gone.signal,
  };
  if (request.path === nodePath) return send(response, handleNode(devchain.ledger.chain, request));
  const isControl = request.path.startsWith('/dev/');
  if (!isControl && devchain.faults.current.unavailable_ms > 0) {
    send(response, { status: 503, body: { message: 'Service Unavailable' } });
    return;
  }
  if (request.method === 'GET' && streams.open(request.path, response)) return;
  const result = isControl ? handleControl(devchain, request) : await handlePublic(devchain, arc, request);
  if (!gone.signal.aborted) send(response, result);
}

async function handlePublic(devchain: Devchain, arc: ArcRoutes, request: HttpRequest): Promise<HttpResponse> {
  if (request.path.startsWith('/v1/')) return arc(request);
  return (
    handleChainTracks(devchain.ledger.chain, request) ?? {
      status: 404,
      body: { message: 'no matching operation was found' },
    }
  );
}

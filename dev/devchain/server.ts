// The HTTP server: dispatches requests to the three APIs, and simulates unavailability.
import { createServer } from 'node:http';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import { createArcRoutes } from './arc-routes.ts';
import type { ArcRoutes } from './arc-routes.ts';
import { answerChainTracks, HeaderStreams } from './chain-tracks-routes.ts';
import { answerControl } from './control-routes.ts';
import type { Devchain } from './devchain.ts';
import { readBody, send } from './http.ts';
import type { Answer, HttpRequest } from './http.ts';

/** How long requests that wait for a status may hold up the end. */
const CLOSE_MILLISECONDS = 1000;

/** A server that is not listening yet, and the way to close it with its streams. */
export interface DevchainServer {
  readonly server: Server;
  /** Stops taking requests, ends streams, and resolves when all are answered. */
  close(): Promise<void>;
}

/** @param arcToken bearer token for the processor's routes; undefined leaves them open */
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
  const isControl = request.path.startsWith('/dev/');
  if (!isControl && devchain.faults.current.unavailable_ms > 0) {
    send(response, { status: 503, body: { message: 'Service Unavailable' } });
    return;
  }
  if (request.method === 'GET' && streams.open(request.path, response)) return;
  const answer = isControl ? answerControl(devchain, request) : await answerPublic(devchain, arc, request);
  if (!gone.signal.aborted) send(response, answer);
}

async function answerPublic(devchain: Devchain, arc: ArcRoutes, request: HttpRequest): Promise<Answer> {
  if (request.path.startsWith('/v1/')) return arc(request);
  return (
    answerChainTracks(devchain.ledger.chain, request) ?? {
      status: 404,
      body: { message: 'no matching operation was found' },
    }
  );
}

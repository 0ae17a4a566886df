// /ws on the REST server: upgrade, credential, origin, pings, and the end of each connection.
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer, type WebSocket } from 'ws';
import { isAllowed } from '../auth/ip-allowlist.ts';
import type { OpenCall } from '../gateway/authenticate.ts';
import { endConnection, errorBody } from '../gateway/http-server.ts';
import { toKelletError, type ErrorCode, type KelletError } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { Gauge, type Registry } from '../platform/metrics.ts';
import type { Caller } from '../platform/rpc.ts';
import { Session, type SessionParts } from './session.ts';

/** Close codes of the contract (API.md, dashboard-bff). */
const closeCodes = { expired: 4401, notAllowed: 4403, tooSlow: 4408, goingAway: 1001, unavailable: 1013 } as const;

const pingMilliseconds = 30_000;
const mostMessageBytes = 256 * 1024;
const requiredScope = 'telemetry:read';

/** What /ws needs. */
export interface WebSocketParts extends SessionParts {
  /** The gateway's: the caller behind a token, counted as a request of its tenant. */
  readonly authenticate: (token: string, address: string) => Promise<Caller>;
  /** The gateway's: ends the call once when its token must not be used any longer, until the answered function is called. */
  readonly watch: (call: OpenCall) => () => void;
  /** From where a request comes, through trusted proxies. */
  readonly addressOf: (request: IncomingMessage) => string;
  /** KELLET_DASHBOARD_ORIGIN: the only origin whose pages may connect. */
  readonly dashboardOrigin: string;
  readonly metrics: Registry;
}

/** The live feed, as main.ts sees it. */
export interface LiveFeed {
  /** Ends all connections; to be called before the HTTP server is closed. */
  close(): void;
}

/** Serves /ws on the server; every other upgrade is refused. */
export function attachWebSocket(server: HttpServer, parts: WebSocketParts): LiveFeed {
  const sockets = new WebSocketServer({ noServer: true, maxPayload: mostMessageBytes, perMessageDeflate: false });
  const gauge: Gauge = new Gauge({
    name: 'kellet_websocket_connections',
    help: 'open connections of /ws',
    registers: [parts.metrics],
    collect: () => gauge.set(sockets.clients.size),
  });
  const onUpgrade = (request: IncomingMessage, stream: Duplex, head: Buffer): void => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    if (url.pathname !== '/ws') return refuse(stream, '404 Not Found', 'NOT_FOUND', 'route not found');
    const { origin } = request.headers;
    if (origin !== undefined && origin !== parts.dashboardOrigin) {
      return refuse(stream, '403 Forbidden', 'PERMISSION_DENIED', 'the origin is not allowed');
    }
    if (!url.searchParams.get('token')) {
      return refuse(stream, '401 Unauthorized', 'UNAUTHENTICATED', 'a credential is required');
    }
    // A browser sees no answer to a refused upgrade, only close codes: a credential is judged behind the handshake.
    sockets.handleUpgrade(request, stream, head, (socket) => {
      void serve(socket, url.searchParams.get('token') ?? '', parts.addressOf(request), parts);
    });
  };
  server.on('upgrade', onUpgrade);
  return {
    close: () => {
      server.off('upgrade', onUpgrade);
      for (const socket of sockets.clients) socket.close(closeCodes.goingAway, 'the server is stopping');
      // Who does not answer the close is not waited for.
      setTimeout(() => sockets.clients.forEach((socket) => socket.terminate()), 1000).unref();
      sockets.close();
    },
  };
}

function refuse(stream: Duplex, status: string, code: ErrorCode, message: string): void {
  const body = errorBody(code, message, newId());
  endConnection(
    stream,
    `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}

async function serve(socket: WebSocket, token: string, address: string, parts: WebSocketParts): Promise<void> {
  const early: string[] = [];
  let session: Session | undefined;
  let stopWatching = (): void => undefined;
  let answered = true;
  const pings = setInterval(() => {
    if (!answered) return socket.terminate();
    answered = false;
    socket.ping();
    session?.refreshGroups();
  }, pingMilliseconds);
  socket.on('pong', () => (answered = true));
  socket.on('error', (error) => parts.logger.debug({ err: error }, 'a connection of /ws failed'));
  socket.on('message', (data, isBinary) => {
    const text = isBinary ? '' : (data as Buffer).toString();
    // A client may speak before its token is judged.
    if (session) session.receive(text);
    else if (early.length < 100) early.push(text);
  });
  socket.on('close', () => {
    clearInterval(pings);
    stopWatching();
    session?.close();
  });
  try {
    const caller = await parts.authenticate(token, address);
    const refusal = refusalOf(caller, address);
    if (refusal) return socket.close(closeCodes.notAllowed, refusal);
    if (socket.readyState !== socket.OPEN) return;
    stopWatching = parts.watch({
      credential: token,
      caller,
      address,
      refusalOf: (now) => refusalOf(now, address),
      end: (reason) => {
        if (reason.code === 'UNAUTHENTICATED') socket.close(closeCodes.expired, 'the token has ended');
        else socket.close(closeCodes.notAllowed, closeReason(reason));
      },
    });
    session = new Session(parts, caller, socket, () => socket.close(closeCodes.tooSlow, 'too slow'));
    for (const text of early) session.receive(text);
  } catch (thrown) {
    const error = toKelletError(thrown);
    if (error.code === 'UNAUTHENTICATED') return socket.close(closeCodes.expired, closeReason(error));
    if (error.code !== 'RESOURCE_EXHAUSTED') parts.logger.error({ err: thrown }, 'a token could not be judged');
    socket.close(closeCodes.unavailable, closeReason(error));
  }
}

/** Why the caller may not have the live feed; undefined when it may. It is for people: no API key opens it. */
function refusalOf(caller: Caller, address: string): string | undefined {
  if (caller.kind !== 'user') return 'an access token is required';
  if (!caller.scopes.has(requiredScope)) return `the scope ${requiredScope} is required`;
  return isAllowed(address, caller.ipAllowlist) ? undefined : 'the address is not allowed';
}

/** At most 123 bytes fit (RFC 6455, 5.5). */
const closeReason = (error: KelletError): string => error.message.slice(0, 120);

// /ws on the REST server: upgrade, credential, origin, pings, and the end of each connection.
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer, type WebSocket } from 'ws';
import { isAllowed } from '../auth/ip-allowlist.ts';
import type { AccessEntry, AccessLog } from '../gateway/access-log.ts';
import type { OpenCall } from '../gateway/authenticate.ts';
import { endConnection, errorBody } from '../gateway/http-server.ts';
import { requestIdOf } from '../gateway/metadata.ts';
import { codes, toKelletError, type ErrorCode, type KelletError } from '../platform/errors.ts';
import { newRequestId } from '../platform/ids.ts';
import { Gauge, type Registry } from '../platform/metrics.ts';
import type { Caller } from '../platform/rpc.ts';
import { Session, type SessionParts } from './session.ts';

/** Close codes of the contract (API.md, dashboard-bff). */
const closeCodes = {
  expired: 4401,
  notAllowed: 4403,
  tooSlow: 4408,
  goingAway: 1001,
  unavailable: 1013,
  abnormal: 1006,
} as const;

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
  readonly accessLog: AccessLog;
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
    help: 'Open connections of /ws.',
    registers: [parts.metrics],
    collect: () => gauge.set(sockets.clients.size),
  });
  const onUpgrade = (request: IncomingMessage, stream: Duplex, head: Buffer): void => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    const requestId = requestIdOf(request.headers['x-request-id'] as string | undefined) ?? newRequestId();
    const entry = parts.accessLog.begin('websocket', 'GET', requestId, undefined);
    entry.address = parts.addressOf(request);
    const refuse = (status: string, code: ErrorCode, message: string): void => {
      writeRefusal(stream, status, requestId, errorBody(code, message, requestId));
      entry.code = code;
      entry.status = codes[code].http;
      parts.accessLog.end(entry);
    };
    if (url.pathname !== '/ws' || request.method !== 'GET')
      return refuse('404 Not Found', 'NOT_FOUND', 'route not found');
    entry.route = '/ws';
    const { origin } = request.headers;
    if (origin !== undefined && origin !== parts.dashboardOrigin) {
      return refuse('403 Forbidden', 'PERMISSION_DENIED', 'the origin is not allowed');
    }
    if (!url.searchParams.get('token')) {
      return refuse(
        '401 Unauthorized',
        'UNAUTHENTICATED',
        'a credential is required: an access token in the query parameter token',
      );
    }
    // A handshake that is wrong is said at once, by an event.
    const onBroken = (error: Error): void => refuse('400 Bad Request', 'INVALID_ARGUMENT', error.message);
    sockets.once('wsClientError', onBroken);
    // A browser sees no answer to a refused upgrade, only close codes: a credential is judged behind the handshake.
    sockets.handleUpgrade(request, stream, head, (socket) => {
      void serve(socket, url.searchParams.get('token') ?? '', entry, parts);
    });
    sockets.off('wsClientError', onBroken);
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

function writeRefusal(stream: Duplex, status: string, requestId: string, body: string): void {
  const lines = [
    `HTTP/1.1 ${status}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${requestId}`,
    // The one that there is (RFC 6455, 4.4).
    'sec-websocket-version: 13',
    'connection: close',
  ];
  endConnection(stream, `${lines.join('\r\n')}\r\n\r\n${body}`);
}

async function serve(socket: WebSocket, token: string, entry: AccessEntry, parts: WebSocketParts): Promise<void> {
  const { address } = entry;
  entry.status = 101;
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
  const end = (closeCode: number, code: ErrorCode, reason: string): void => {
    entry.code = code;
    entry.closeCode ??= closeCode;
    socket.close(closeCode, reason);
  };
  socket.on('close', (closeCode) => {
    entry.closeCode ??= closeCode;
    if (entry.closeCode === closeCodes.abnormal) entry.code = 'CANCELLED';
    parts.accessLog.end(entry);
    clearInterval(pings);
    stopWatching();
    session?.close();
  });
  try {
    const caller = (entry.caller = await parts.authenticate(token, address));
    const refusal = refusalOf(caller, address);
    if (refusal) return end(closeCodes.notAllowed, 'PERMISSION_DENIED', refusal);
    if (socket.readyState !== socket.OPEN) return;
    stopWatching = parts.watch({
      credential: token,
      caller,
      address,
      refusalOf: (now) => refusalOf(now, address),
      end: (reason) => {
        if (reason.code === 'UNAUTHENTICATED') end(closeCodes.expired, reason.code, 'the token has ended');
        else end(closeCodes.notAllowed, reason.code, closeReason(reason));
      },
    });
    session = new Session(parts, caller, socket, () => end(closeCodes.tooSlow, 'RESOURCE_EXHAUSTED', 'too slow'));
    parts.accessLog.end(entry);
    for (const text of early) session.receive(text);
  } catch (thrown) {
    const error = toKelletError(thrown);
    if (error.code === 'UNAUTHENTICATED') return end(closeCodes.expired, error.code, closeReason(error));
    if (error.code !== 'RESOURCE_EXHAUSTED') parts.logger.error({ err: thrown }, 'a token could not be judged');
    end(closeCodes.unavailable, error.code, closeReason(error));
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

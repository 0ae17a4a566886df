// /ws on the REST server: upgrade, credential, origin, pings, and the end of each connection.
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { WebSocketServer, type WebSocket } from 'ws';
import { isAllowed } from '../platform/address-ranges.ts';
import type { AccessEntry, AccessLog } from '../gateway/observability/access-log.ts';
import type { OpenCall } from '../gateway/admission/authenticate.ts';
import { MemoryBudget } from '../gateway/http/memory-budget.ts';
import { endConnection, errorBody } from '../gateway/http/http-server.ts';
import { requestIdOf } from '../gateway/http/metadata.ts';
import { addressBlock } from '../platform/address-block.ts';
import { codes, toKelletError, unavailable, type ErrorCode, type KelletError } from '../platform/errors.ts';
import { newRequestId } from '../platform/ids.ts';
import { Gauge, type Registry } from '../platform/observability/metrics.ts';
import type { Caller } from '../platform/rpc.ts';
import { defaultConnectionLimits, Tally, type ConnectionLimits } from './connections.ts';
import { Session, type SessionParts } from './session.ts';

/** Close codes of the contract (API.md, dashboard-bff). */
const closeCodes = {
  expired: 4401,
  notAllowed: 4403,
  tooSlow: 4408,
  goingAway: 1001,
  unavailable: 1013,
  /** More messages than a client may send (RFC 6455: a policy is violated). */
  flooded: 1008,
  abnormal: 1006,
} as const;

const pingMilliseconds = 30_000;
/** Enough for a thousand device ids. */
const mostMessageBytes = 64 * 1024;
/** How long a token may take to be judged, and a client that is sent away to read why. */
const judgingMilliseconds = 10_000;
const dismissalMilliseconds = 1000;
/** What is read and thrown away meanwhile: enough for a client that closes its side. */
const mostDismissedBytes = 4096;
/** What may stand behind the request for the upgrade: a client has to wait for the answer before it sends anything. */
const mostEarlyBytes = 4096;
const mebibyte = 1024 * 1024;
const requiredScope = 'telemetry:read';

/** What /ws needs. */
export interface WebSocketParts extends Omit<SessionParts, 'memory' | 'watched' | 'limits'> {
  /** The gateway's: the caller behind a token, counted as a request of its tenant. */
  readonly authenticate: (token: string, address: string) => Promise<Caller>;
  /** Whether the gateway has found, within the last seconds, that the token holds. */
  readonly isKnown: (token: string) => boolean;
  /** The gateway's: ends the call once when its token must not be used any longer, until the answered function is called. */
  readonly watch: (call: OpenCall) => () => void;
  /** From where a request comes, through trusted proxies. */
  readonly addressOf: (request: IncomingMessage) => string;
  readonly accessLog: AccessLog;
  /** KELLET_DASHBOARD_ORIGIN: the only origin whose pages may connect. */
  readonly dashboardOrigin: string;
  readonly metrics: Registry;
  readonly limits?: Partial<ConnectionLimits>;
}

/** What a socket needs besides: what is counted over all of them. */
interface ServeParts extends Omit<WebSocketParts, 'limits'>, SessionParts {
  readonly limits: ConnectionLimits;
  readonly ofUser: Tally;
  readonly ofTenant: Tally;
}

/** The live feed, as main.ts sees it. */
export interface LiveFeed {
  /** Ends all connections; to be called before the HTTP server is closed. */
  close(): void;
}

/** Serves /ws on the server; every other upgrade is refused. */
export function attachWebSocket(server: HttpServer, given: WebSocketParts): LiveFeed {
  const limits = { ...defaultConnectionLimits, ...given.limits };
  const parts: ServeParts = {
    ...given,
    limits,
    memory: new MemoryBudget({ total: 64 * mebibyte, perOwner: 24 * mebibyte }),
    watched: new Tally(),
    ofUser: new Tally(),
    ofTenant: new Tally(),
  };
  const unjudged = new Tally();
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: mostMessageBytes,
    // A message in many pieces takes more memory than its bytes.
    maxFragments: 64,
    maxBufferedChunks: 1024,
    // A few bytes that become many.
    perMessageDeflate: false,
    // Pongs would wait without bound for a client that does not read.
    autoPong: false,
  });
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
      writeRefusal(
        stream,
        status,
        requestId,
        errorBody(code === 'RESOURCE_EXHAUSTED' ? 429 : code, message, requestId),
      );
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
    const token = url.searchParams.get('token');
    if (!token) {
      return refuse(
        '401 Unauthorized',
        'UNAUTHENTICATED',
        'a credential is required: an access token in the query parameter token',
      );
    }
    if (head.length > mostEarlyBytes) {
      return refuse('400 Bad Request', 'INVALID_ARGUMENT', 'wait for the answer to the upgrade before sending');
    }
    const block = addressBlock(entry.address);
    const isCrowded = unjudged.of('') >= limits.unjudged || unjudged.of(block) >= limits.unjudgedOfAddress;
    // Those whose token is known to hold do not wait behind those who are not.
    if (isCrowded && !parts.isKnown(token)) {
      return refuse(
        '429 Too Many Requests',
        'RESOURCE_EXHAUSTED',
        'too many connections wait for their token to be judged',
      );
    }
    // A handshake that is wrong is said at once, by an event.
    const onBroken = (error: Error): void => refuse('400 Bad Request', 'INVALID_ARGUMENT', error.message);
    sockets.once('wsClientError', onBroken);
    // A browser sees no answer to a refused upgrade, only close codes: a credential is judged behind the handshake.
    sockets.handleUpgrade(request, stream, head, (socket) => {
      // Nothing is read of a stranger.
      socket.pause();
      const leaves = [unjudged.enter(''), unjudged.enter(block)];
      void serve({ socket, stream, token, entry, judged: () => leaves.forEach((leave) => leave()) }, parts);
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
    ...(status.startsWith('429') ? ['retry-after: 1'] : []),
    'connection: close',
  ];
  endConnection(stream, `${lines.join('\r\n')}\r\n\r\n${body}`);
}

/** A socket whose token is not judged yet. */
interface Upgraded {
  readonly socket: WebSocket;
  readonly stream: Duplex;
  readonly token: string;
  readonly entry: AccessEntry;
  /** To be called when the token is judged, or the socket is gone. */
  readonly judged: () => void;
}

async function serve({ socket, stream, token, entry, judged }: Upgraded, parts: ServeParts): Promise<void> {
  const { address } = entry;
  entry.status = 101;
  let session: Session | undefined;
  const atEnd: (() => void)[] = [judged];
  let answered = true;
  const pings = setInterval(() => {
    if (!answered) return socket.terminate();
    answered = false;
    socket.ping();
    session?.refreshGroups();
  }, pingMilliseconds);
  socket.on('ping', (data) => {
    // Whoever does not read needs no further pong.
    if (session?.count() && socket.bufferedAmount < mostMessageBytes) socket.pong(data);
  });
  socket.on('pong', () => {
    answered = true;
    session?.count();
  });
  socket.on('error', (error) => {
    parts.logger.debug({ err: error }, 'a connection of /ws failed');
    // It has said why, and reads on until the client closes its side.
    linger(socket, stream);
  });
  socket.on('message', (data, isBinary) => session?.receive(isBinary ? '' : (data as Buffer).toString()));
  const end = (closeCode: number, code: ErrorCode, reason: string): void => {
    entry.code = code;
    entry.closeCode ??= closeCode;
    session?.close();
    socket.close(closeCode, reason);
    linger(socket, stream);
  };
  socket.on('close', (closeCode) => {
    entry.closeCode ??= closeCode;
    if (entry.closeCode === closeCodes.abnormal) entry.code = 'CANCELLED';
    parts.accessLog.end(entry);
    clearInterval(pings);
    for (const run of atEnd) run();
    session?.close();
  });
  try {
    const caller = (entry.caller = await inTime(parts.authenticate(token, address)));
    judged();
    const refusal = refusalOf(caller, address);
    if (refusal) return end(closeCodes.notAllowed, 'PERMISSION_DENIED', refusal);
    if (socket.readyState !== socket.OPEN) return;
    const { limits, ofUser, ofTenant } = parts;
    const user = `${caller.tenantId}/${caller.userId}`;
    if (ofUser.of(user) >= limits.ofUser || ofTenant.of(caller.tenantId) >= limits.ofTenant) {
      return end(closeCodes.unavailable, 'RESOURCE_EXHAUSTED', 'too many connections of this user or tenant');
    }
    atEnd.push(ofUser.enter(user), ofTenant.enter(caller.tenantId));
    atEnd.push(
      parts.watch({
        credential: token,
        caller,
        address,
        refusalOf: (now) => refusalOf(now, address),
        end: (reason) => {
          if (reason.code === 'UNAUTHENTICATED') end(closeCodes.expired, reason.code, 'the token has ended');
          else end(closeCodes.notAllowed, reason.code, closeReason(reason));
        },
      }),
    );
    session = new Session(parts, caller, socket, {
      tooSlow: () => end(closeCodes.tooSlow, 'RESOURCE_EXHAUSTED', 'too slow'),
      flooded: () => {
        const message = 'too many messages: the connection is closed';
        socket.send(JSON.stringify({ error: { code: 'RESOURCE_EXHAUSTED', message } }));
        end(closeCodes.flooded, 'RESOURCE_EXHAUSTED', message);
      },
    });
    parts.accessLog.end(entry);
    socket.resume();
  } catch (thrown) {
    judged();
    const error = toKelletError(thrown);
    if (error.code === 'UNAUTHENTICATED') return end(closeCodes.expired, error.code, closeReason(error));
    if (error.code !== 'RESOURCE_EXHAUSTED') parts.logger.error({ err: thrown }, 'a token could not be judged');
    end(closeCodes.unavailable, error.code, closeReason(error));
  }
}

/** What is judged, unless that takes too long. */
async function inTime<T>(judging: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(unavailable('the token could not be judged in time')), judgingMilliseconds);
  });
  return Promise.race([judging, late]).finally(() => clearTimeout(timer));
}

/** Gives a client that has been told to go a moment to do so; of what it still sends little is read. */
function linger(socket: WebSocket, stream: Duplex): void {
  const timer = setTimeout(() => socket.terminate(), dismissalMilliseconds);
  let bytes = 0;
  const count = (chunk: Buffer): void => {
    bytes += chunk.length;
    if (bytes > mostDismissedBytes) socket.pause();
  };
  stream.on('data', count);
  socket.once('close', () => {
    clearTimeout(timer);
    stream.off('data', count);
  });
  socket.resume();
}

/** Why the caller may not have the live feed; undefined when it may. It is for people: no API key opens it. */
function refusalOf(caller: Caller, address: string): string | undefined {
  if (caller.kind !== 'user') return 'an access token is required';
  if (!caller.scopes.has(requiredScope)) return `the scope ${requiredScope} is required`;
  return isAllowed(address, caller.ipAllowlist) ? undefined : 'the address is not allowed';
}

/** At most 123 bytes fit (RFC 6455, 5.5). */
const closeReason = (error: KelletError): string => error.message.slice(0, 120);

// /ws on the REST server: upgrade, credential, origin, pings, and closing of connections.
import type { IncomingMessage, Server as HttpServer } from 'node:http';
import type { Duplex } from 'node:stream';
import { type WebSocket, WebSocketServer } from 'ws';
import type { OpenCall } from '../gateway/admission/authenticate.ts';
import { movedTo } from '../gateway/admission/open-call.ts';
import { endConnection, errorBody } from '../gateway/http/http-server.ts';
import { requestIdOf } from '../gateway/http/metadata.ts';
import { DecodingTurns } from '../gateway/memory/decoding-turns.ts';
import { MemoryBudget } from '../gateway/memory/memory-budget.ts';
import type { AccessEntry, AccessLog } from '../gateway/observability/access-log.ts';
import { addressBlock } from '../platform/addresses/address-block.ts';
import { isAllowed } from '../platform/addresses/address-ranges.ts';
import { actorOf, type AuditFacts } from '../platform/audit/audit-event.ts';
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import { Tally } from '../platform/concurrency/tally.ts';
import { codes, type ErrorCode, type KelletError, toKelletError, unavailable } from '../platform/errors.ts';
import { newRequestId } from '../platform/ids.ts';
import { Gauge, type Registry } from '../platform/observability/metrics.ts';
import type { Caller } from '../platform/rpc.ts';
import { firstBytes } from '../platform/shorten.ts';
import { holdsInPart } from '../platform/visibility.ts';
import { type ConnectionLimits, defaultConnectionLimits } from './connections.ts';
import { DeviceChanges } from './device-changes.ts';
import { GroupChanges } from './group-changes.ts';
import { Session, type SessionParts, type SessionSocket } from './session.ts';

/** Close codes. */
const closeCodes = {
  expired: 4401,
  notAllowed: 4403,
  tooSlow: 4408,
  goingAway: 1001,
  unavailable: 1013,
  /** More messages than allowed (RFC 6455: policy violation). */
  flooded: 1008,
  abnormal: 1006,
} as const;

const pingMilliseconds = 30_000;
/** Enough for a thousand device ids. */
const maxMessageBytes = 64 * 1024;
/** Time to validate a token, and for a rejected client to read the reason. */
const judgingMilliseconds = 10_000;
const dismissalMilliseconds = 1000;
/** Bytes read and discarded meanwhile: enough for a client to close its side. */
const maxDismissedBytes = 4096;
/** Bytes that may follow the upgrade request: a client must wait for the response before it sends anything. */
const maxEarlyBytes = 4096;
const mebibyte = 1024 * 1024;
const requiredScope = 'telemetry:read';

/** Dependencies of /ws. */
export interface WebSocketParts extends Omit<SessionParts, 'memory' | 'turns' | 'subscribed' | 'limits'> {
  /** Returns the caller behind a token, counted as a request of its tenant. Provided by the gateway. */
  readonly authenticate: (token: string, address: string) => Promise<Caller>;
  /** Reports whether the gateway has found the token valid within the last seconds. */
  readonly isKnown: (token: string) => boolean;
  /**
   * Ends the call once its token is no longer valid, until the returned function is called. Provided by the gateway.
   */
  readonly watch: (call: OpenCall) => () => void;
  /** Calls back for each group whose devices changed: `tenant/group`, or undefined if changes may have been missed. */
  readonly followGroups: (changed: (group: string | undefined) => void) => void;
  /** Calls back for each changed device: `tenant/device`, or undefined if changes may have been missed. */
  readonly followDevices: (changed: (device: string | undefined) => void) => void;
  /** Returns the client address of a request, through trusted proxies. */
  readonly addressOf: (request: IncomingMessage) => string;
  readonly accessLog: AccessLog;
  /** Records what callers are refused. */
  readonly audit: Pick<AuditTrail, 'noteOnce'>;
  /** KELLET_DASHBOARD_ORIGIN: the only origin whose pages may connect. */
  readonly dashboardOrigin: string;
  readonly metrics: Registry;
  readonly limits?: Partial<ConnectionLimits>;
}

/** Dependencies of a socket, including counters shared by all sockets. */
interface ServeParts extends Omit<WebSocketParts, 'limits'>, SessionParts {
  readonly limits: ConnectionLimits;
  readonly ofUser: Tally;
  readonly ofTenant: Tally;
  readonly groups: GroupChanges;
  readonly deviceChanges: DeviceChanges;
}

/** The running live feed. */
export interface LiveFeed {
  /** Ends all connections. Must be called before the HTTP server is closed. */
  close(): void;
}

/** Serves /ws on the server; all other upgrades are rejected. */
export function attachWebSocket(server: HttpServer, given: WebSocketParts): LiveFeed {
  const limits = { ...defaultConnectionLimits, ...given.limits };
  const parts: ServeParts = {
    ...given,
    limits,
    memory: new MemoryBudget({ total: 64 * mebibyte, perOwner: 24 * mebibyte }),
    turns: new DecodingTurns(),
    subscribed: new Tally(),
    ofUser: new Tally(),
    ofTenant: new Tally(),
    groups: new GroupChanges(given.groupMembers, given.logger),
    deviceChanges: new DeviceChanges(),
  };
  given.followGroups((group) => {
    parts.groups.note(group);
    parts.deviceChanges.noteGroup(group);
  });
  given.followDevices((device) => parts.deviceChanges.note(device));
  const unjudged = new Tally();
  const sockets = new WebSocketServer({
    noServer: true,
    maxPayload: maxMessageBytes,
    // A message in many fragments takes more memory than its bytes.
    maxFragments: 64,
    maxBufferedChunks: 1024,
    // A few compressed bytes can expand to many.
    perMessageDeflate: false,
    // Automatic pongs would queue without bound for a client that does not read.
    autoPong: false,
    // Others run between the messages of one read, of which it may hold ten thousand.
    allowSynchronousEvents: false,
  });
  const gauge: Gauge = new Gauge({
    name: 'kellet_websocket_connections',
    help: 'Open /ws connections.',
    registers: [parts.metrics],
    collect: () => gauge.set(sockets.clients.size),
  });
  const onUpgrade = (request: IncomingMessage, stream: Duplex, head: Buffer): void => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    // Handled by mqtt/listeners.ts.
    if (url.pathname === '/mqtt') return;
    const requestId = requestIdOf(request.headers['x-request-id'] as string | undefined) ?? newRequestId();
    const entry = parts.accessLog.begin('websocket', 'GET', requestId, undefined);
    entry.address = parts.addressOf(request);
    entry.userAgent = request.headers['user-agent'] ?? '';
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
    const [token, ...others] = url.searchParams.getAll('token');
    if (others.length > 0 || [...url.searchParams.keys()].some((name) => name !== 'token')) {
      return refuse('400 Bad Request', 'INVALID_ARGUMENT', 'the query must have the parameter token alone, once');
    }
    if (!token) {
      return refuse(
        '401 Unauthorized',
        'UNAUTHENTICATED',
        'a credential is required: an access token in the query parameter token',
      );
    }
    if (head.length > maxEarlyBytes) {
      return refuse('400 Bad Request', 'INVALID_ARGUMENT', 'wait for the response to the upgrade before sending');
    }
    const block = addressBlock(entry.address);
    const isCrowded = unjudged.of('') >= limits.unjudged || unjudged.of(block) >= limits.unjudgedOfAddress;
    // Tokens known to be valid do not wait behind unknown ones.
    if (isCrowded && !parts.isKnown(token)) {
      return refuse(
        '429 Too Many Requests',
        'RESOURCE_EXHAUSTED',
        'too many connections are waiting for their token to be validated',
      );
    }
    // An invalid handshake is reported immediately, by an event.
    const onBroken = (error: Error): void => refuse('400 Bad Request', 'INVALID_ARGUMENT', error.message);
    sockets.once('wsClientError', onBroken);
    // Browsers do not expose the response to a rejected upgrade, only close codes: so the credential is validated after
    // the handshake.
    sockets.handleUpgrade(request, stream, head, (socket) => {
      // Nothing is read before the token is validated.
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
      parts.groups.close();
      parts.deviceChanges.close();
      parts.events.close();
      void parts.rollouts.close();
      for (const socket of sockets.clients) socket.close(closeCodes.goingAway, 'the server is stopping');
      // Clients that do not acknowledge the close are disconnected.
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
    // The only version there is (RFC 6455, 4.4).
    'sec-websocket-version: 13',
    ...(status.startsWith('429') ? ['retry-after: 1'] : []),
    'connection: close',
  ];
  endConnection(stream, `${lines.join('\r\n')}\r\n\r\n${body}`);
}

/** A socket whose token is still being validated. */
interface Upgraded {
  readonly socket: WebSocket;
  readonly stream: Duplex;
  readonly token: string;
  readonly entry: AccessEntry;
  /** Must be called when validation ends or the socket closes. */
  readonly judged: () => void;
}

async function serve({ socket, stream, token, entry, judged }: Upgraded, parts: ServeParts): Promise<void> {
  const { address } = entry;
  entry.status = 101;
  let session: Session | undefined;
  const atEnd: (() => void)[] = [judged];
  let isAlive = true;
  const pings = setInterval(() => {
    if (!isAlive) return socket.terminate();
    isAlive = false;
    socket.ping();
  }, pingMilliseconds);
  socket.on('ping', (data) => {
    // A client that does not read gets no further pongs.
    if (session?.count() && socket.bufferedAmount < maxMessageBytes) socket.pong(data);
  });
  socket.on('pong', () => {
    isAlive = true;
    session?.count();
  });
  socket.on('error', (error) => {
    parts.logger.debug({ err: error }, 'a /ws connection failed');
    // The client has been sent the reason; reading continues until it closes its side.
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
    const denied = (action: string, channel = ''): void =>
      parts.audit.noteOnce(deniedFacts(entry, caller, action, channel));
    if (refusal) {
      denied('websocket.connect');
      return end(closeCodes.notAllowed, 'PERMISSION_DENIED', refusal);
    }
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
        refusalOf: (now) => movedTo(now, caller) ?? refusalOf(now, address) ?? session?.check(now),
        end: (reason) => {
          const { code } = reason;
          if (code === 'UNAUTHENTICATED') end(closeCodes.expired, code, 'the token has expired or was revoked');
          else if (code === 'UNAVAILABLE') end(closeCodes.unavailable, code, closeReason(reason));
          else end(closeCodes.notAllowed, code, closeReason(reason));
        },
      }),
    );
    session = new Session(parts, caller, sessionSocket(socket, stream), {
      denied: (channel) => denied('websocket.subscribe', channel),
      tooSlow: () => end(closeCodes.tooSlow, 'RESOURCE_EXHAUSTED', 'too slow'),
      flooded: () => {
        const message = 'too many messages: the connection is closed';
        socket.send(JSON.stringify({ error: { code: 'RESOURCE_EXHAUSTED', message } }));
        end(closeCodes.flooded, 'RESOURCE_EXHAUSTED', message);
      },
    });
    atEnd.push(parts.groups.follow(caller.tenantId, session));
    if (session.isLimited) atEnd.push(parts.deviceChanges.follow(caller.tenantId, session));
    parts.accessLog.end(entry);
    socket.resume();
  } catch (thrown) {
    judged();
    const error = toKelletError(thrown);
    if (error.code === 'UNAUTHENTICATED') return end(closeCodes.expired, error.code, closeReason(error));
    if (error.code === 'PERMISSION_DENIED') return end(closeCodes.notAllowed, error.code, closeReason(error));
    if (error.code !== 'RESOURCE_EXHAUSTED') parts.logger.error({ err: thrown }, 'a token could not be validated');
    end(closeCodes.unavailable, error.code, closeReason(error));
  }
}

/**
 * Returns what a session needs of a socket. Frames are written to the stream itself. Without compression, the library
 * writes its own frames there immediately, so the order is kept.
 */
const sessionSocket = (socket: WebSocket, stream: Duplex): SessionSocket => ({
  get bufferedAmount() {
    return socket.bufferedAmount;
  },
  sendFrame: (frame) => {
    // Nothing may follow the frame that closes the connection.
    if (socket.readyState === socket.OPEN) stream.write(frame);
  },
  send: (text, done) => socket.send(text, done),
  pause: () => socket.pause(),
  resume: () => socket.resume(),
});

/** Returns the audit event of what a caller was refused. */
const deniedFacts = (
  { address, userAgent, requestId }: AccessEntry,
  caller: Caller,
  action: string,
  channel: string,
): AuditFacts => ({
  tenantId: caller.tenantId,
  actor: actorOf(caller),
  action,
  resource: { kind: channel === '' ? '' : 'channel', id: channel },
  result: 'PERMISSION_DENIED',
  ...{ address, userAgent, requestId },
});

/** Bounds the time of a validation. */
async function inTime<T>(judging: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => reject(unavailable('the token could not be validated in time')), judgingMilliseconds);
  });
  return Promise.race([judging, late]).finally(() => clearTimeout(timer));
}

/** Gives a dismissed client a moment to close, reading little of what it still sends. */
function linger(socket: WebSocket, stream: Duplex): void {
  const timer = setTimeout(() => socket.terminate(), dismissalMilliseconds);
  let bytes = 0;
  const count = (chunk: Buffer): void => {
    bytes += chunk.length;
    if (bytes > maxDismissedBytes) socket.pause();
  };
  stream.on('data', count);
  socket.once('close', () => {
    clearTimeout(timer);
    stream.off('data', count);
  });
  socket.resume();
}

/**
 * Returns why the caller may not use the live feed, or undefined if it may. It is for users: API keys are not accepted.
 */
function refusalOf(caller: Caller, address: string): string | undefined {
  if (caller.kind !== 'user') return 'an access token is required';
  if (caller.mustEnroll) return 'the tenant requires a second factor: enroll one first';
  if (!holdsInPart(caller, requiredScope)) return `the scope ${requiredScope} is required`;
  return isAllowed(address, caller.ipAllowlist) ? undefined : 'the address is not allowed';
}

/** A close reason has at most 123 bytes (RFC 6455, 5.5). */
const closeReason = (error: KelletError): string => firstBytes(error.message, 123);

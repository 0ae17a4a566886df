// HTTP/1.1 server for all ports of a process (RFC 9112): bounds time, size and number of connections, rejects malformed
// requests with the usual error body, and drains without interrupting requests.
import { type IncomingMessage, Server, type ServerResponse } from 'node:http';
import type { Server as Listener, Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { Acceptors } from '../../platform/addresses/acceptors.ts';
import { limitConnections } from '../../platform/addresses/limit-connections.ts';
import { cutOff, limitPieces } from '../../platform/cut-off.ts';
import { codes, type ErrorCode } from '../../platform/errors.ts';
import { newRequestId } from '../../platform/ids.ts';

/** Limits for one client. Times are in milliseconds. */
export interface HttpLimits {
  /** From the first byte of a request to the end of its headers. */
  readonly headersTimeout: number;
  /**
   * From the headers of a request to the end of its body, and the bytes that extend it by a second, since uploads may
   * be large.
   */
  readonly bodyTimeout: number;
  readonly bodyBytesPerSecond: number;
  /** Idle time between requests, longer than that of load balancers (60 s). */
  readonly keepAliveTimeout: number;
  /** Time for a client to read a response. */
  readonly responseTimeout: number;
  /** Time during which the rest of a body is discarded after the response, so that the client can read the response. */
  readonly lingerTimeout: number;
  /** Maximum size of request line and headers. */
  readonly headerBytes: number;
  /** Maximum connections; further ones are closed immediately. */
  readonly connections: number;
  /** Requests of a connection awaiting responses at which reading pauses. */
  readonly readAhead: number;
  /**
   * Requests that may have been read by then; a connection with more is closed. Each costs 25 µs and 4 KiB before anything is done for
   * it, and one read of each connection may hold two thousand.
   */
  readonly pipelined: number;
}

const defaultHttpLimits: HttpLimits = {
  headersTimeout: 15_000,
  bodyTimeout: 60_000,
  bodyBytesPerSecond: 16 * 1024,
  keepAliveTimeout: 65_000,
  responseTimeout: 120_000,
  lingerTimeout: 5_000,
  headerBytes: 16 * 1024,
  connections: 10_000,
  readAhead: 4,
  pipelined: 20,
};

/** An HTTP connection. */
interface Connection {
  /** Requests without a complete response. */
  outstanding: number;
  /** Those whose handling has not started. */
  readonly queue: ServerResponse[];
  /** The latest request's response, when the request's headers arrived, and the bytes read from the client by then. */
  last: ServerResponse | undefined;
  lastAt: number;
  lastRead: number;
  /** Whether reading is paused until some requests are done. */
  isPaused: boolean;
  /** Whether the client has sent too many requests at once: the connection is being closed. */
  isCrowded: boolean;
  /** Whether the client has sent something other than HTTP: nothing more is read. */
  isBroken: boolean;
  /** Sent after the pending responses. */
  refusal: string | undefined;
  /** Bytes written at the last sweep, and when that number last changed. */
  written: number;
  writtenAt: number;
}

/** A request rejected before it reached the handler. */
export interface Refusal {
  readonly code: ErrorCode;
  readonly requestId: string;
  readonly socket: Socket;
  /** Absent if no request could be parsed. */
  readonly request: IncomingMessage | undefined;
}

/** Options of HttpServer besides its handler. */
export interface HttpServerOptions {
  readonly limits?: Partial<HttpLimits>;
  /** Selects upgrade requests for the `upgrade` listeners; others are treated as plain requests. */
  readonly upgrades?: (request: IncomingMessage) => boolean;
  /** Called for rejections that the handler does not see. */
  readonly refused?: (refusal: Refusal) => void;
}

/** Requests whose clients await 100 Continue before sending the body. */
const waiting = new WeakMap<IncomingMessage, { response: ServerResponse; server: HttpServer }>();

/** Sends 100 Continue if the client awaits it. Must be called before reading a body. */
export function continueRequest(request: IncomingMessage): void {
  const waits = waiting.get(request);
  if (!waits) return;
  waiting.delete(request);
  if (!waits.server.isDraining) waits.response.removeHeader('connection');
  waits.response.writeContinue();
}

/** Returns the JSON body of an error. */
export const errorBody = (code: ErrorCode | number, message: string, requestId: string): string =>
  JSON.stringify({ code, message, request_id: requestId });

/** The server. `handle` receives only well-formed requests. */
export class HttpServer extends Server {
  /** Whether the server is draining: every response closes its connection. */
  isDraining = false;
  private readonly open = new Map<Socket, Connection>();
  /** Connections upgraded to another protocol. */
  private readonly upgraded = new Set<Socket>();
  private readonly handle: (request: IncomingMessage, response: ServerResponse) => void;
  private readonly limits: HttpLimits;
  private readonly refused: (refusal: Refusal) => void;
  private isClosing = false;
  /** Takes the connections instead of this server. */
  private front: Listener | undefined;
  private acceptors: Acceptors | undefined;
  /** Connections of the other listener, also those whose TLS handshake is not complete. */
  private readonly accepted = new Set<Socket>();

  constructor(handle: (request: IncomingMessage, response: ServerResponse) => void, options: HttpServerOptions = {}) {
    const limits = { ...defaultHttpLimits, ...options.limits };
    super({
      headersTimeout: limits.headersTimeout,
      // Node's own timeout would interrupt a large body however fast it arrives.
      requestTimeout: 0,
      keepAliveTimeout: limits.keepAliveTimeout,
      connectionsCheckingInterval: Math.min(1000, limits.headersTimeout),
      maxHeaderSize: limits.headerBytes,
      // Checked below, with the usual error body.
      requireHostHeader: false,
      shouldUpgradeCallback: (request) => this.takesUpgrade(request, options.upgrades),
    });
    this.handle = handle;
    this.limits = limits;
    this.refused = options.refused ?? (() => undefined);
    limitConnections(this, limits.connections);
    this.on('connection', (socket) => this.add(socket));
    this.on('request', (request, response) => this.receive(request, response));
    this.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      // If the body was not requested, the client cannot tell whether we wait for it: the connection closes.
      response.setHeader('connection', 'close');
      waiting.set(request, { response, server: this });
      this.receive(request, response);
    });
    this.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
      this.receive(request, response),
    );
    this.on('connect', (_request, stream) => this.refuseTunnel(stream as Socket));
    this.on('clientError', (error, stream) => this.refuseMalformed(error, stream as Socket));
    const sweep = setInterval(() => this.sweep(), Math.min(5000, limits.responseTimeout / 4, limits.bodyTimeout / 4));
    sweep.unref();
    this.once('close', () => clearInterval(sweep));
  }

  /** Serves the connections that another server hands over, such as one of TLS, which gets those of the port. */
  behind(front: Listener): void {
    this.front = front;
    front.on('connection', (socket: Socket) => {
      this.accepted.add(socket);
      socket.once('close', () => this.accepted.delete(socket));
    });
  }

  /** Listens and returns the port, which the system chooses if 0 is given. */
  async start(port: number, host: string): Promise<number> {
    const target: Listener = this.front ?? this;
    const options = this.front ? {} : { allowHalfOpen: true, noDelay: true };
    this.acceptors = new Acceptors(options, (socket) => target.emit('connection', socket));
    const listening = await this.acceptors.listen(port, host);
    // Node looks at the timeouts of headers from then on.
    this.emit('listening');
    return listening;
  }

  /**
   * Starts draining: every response closes its connection, so that clients reconnect elsewhere. New connections are
   * still accepted.
   */
  drain(): void {
    this.isDraining = true;
    for (const { last, outstanding } of this.open.values()) {
      if (outstanding > 0 && last && !last.headersSent) last.setHeader('connection', 'close');
    }
  }

  /**
   * Stops accepting connections and closes idle ones. Resolves when all running requests are done or the time is up.
   */
  async closeWithin(milliseconds: number): Promise<void> {
    this.drain();
    this.isClosing = true;
    const shut = (): Promise<void> => new Promise((resolve) => this.close(() => resolve()));
    if (this.acceptors) this.closeIdleConnections();
    const closed = this.acceptors?.close().then(shut) ?? shut();
    // Requests that are partially received get a moment to finish.
    const partial = setTimeout(
      () => this.cut((connection) => connection.outstanding === 0),
      Math.min(milliseconds, 1000),
    );
    const late = setTimeout(() => {
      this.cut(() => true);
      for (const socket of [...this.upgraded, ...this.accepted]) socket.destroy();
    }, milliseconds);
    await closed;
    clearTimeout(partial);
    clearTimeout(late);
  }

  private cut(which: (connection: Connection) => boolean): void {
    for (const [socket, connection] of this.open) if (which(connection)) socket.destroy();
  }

  private takesUpgrade(request: IncomingMessage, upgrades?: (request: IncomingMessage) => boolean): boolean {
    if (!upgrades?.(request) || this.listenerCount('upgrade') === 0) return false;
    // The new protocol must not overtake pending responses.
    if (this.open.get(request.socket)?.outstanding !== 0) return false;
    // From here on the connection belongs to the new protocol.
    const { socket } = request;
    this.open.delete(socket);
    this.upgraded.add(socket);
    socket.once('close', () => this.upgraded.delete(socket));
    return true;
  }

  private add(socket: Socket): void {
    const connection: Connection = {
      outstanding: 0,
      queue: [],
      last: undefined,
      lastAt: 0,
      lastRead: 0,
      isPaused: false,
      isCrowded: false,
      isBroken: false,
      refusal: undefined,
      written: 0,
      writtenAt: performance.now(),
    };
    this.open.set(socket, connection);
    socket.once('close', () => this.open.delete(socket));
    // Node removes its own error listener from upgraded connections, and an unhandled error would crash the process.
    // `close` handles the consequences.
    socket.on('error', () => undefined);
    // After a response with `Connection: close`, Node closes the connection immediately: a client still sending its
    // body would lose the response.
    const destroySoon = socket.destroySoon.bind(socket);
    socket.destroySoon = () => {
      const { last } = connection;
      if (!last || last.req.complete || !this.open.has(socket)) return destroySoon();
      readOn(last.req);
      last.req.once('end', destroySoon);
      socket.end();
      lingering(socket, this.limits.lingerTimeout);
    };
  }

  private receive(request: IncomingMessage, response: ServerResponse): void {
    const { socket } = request;
    const connection = this.open.get(socket);
    if (!connection || connection.isCrowded) return;
    const { last } = connection;
    if (this.isDraining) {
      if (connection.outstanding > 0 && last) {
        // An earlier response has announced that it closes the connection: later requests are ignored.
        if (last.headersSent) return;
        last.removeHeader('connection');
      }
      response.setHeader('connection', 'close');
    }
    if (request.headers['transfer-encoding'] !== undefined) limitPieces(request, () => inAnyPieces.has(request));
    connection.last = response;
    connection.lastAt = performance.now();
    connection.lastRead = socket.bytesRead;
    connection.outstanding += 1;
    response.once('close', () => this.onResponseClosed(request, socket, connection));
    if (connection.outstanding > this.limits.pipelined) {
      connection.isCrowded = true;
      return cutOff(socket);
    }
    if (connection.outstanding > this.limits.readAhead) {
      connection.isPaused = true;
      pauseRequests(socket);
    }
    // One at a time: a pipelined request may depend on earlier ones (RFC 9112, 9.3.2), and a client that does not read
    // then has one response in memory, not a thousand.
    if (connection.outstanding > 1) connection.queue.push(response);
    else this.take(request, response);
  }

  private take(request: IncomingMessage, response: ServerResponse): void {
    if (request.httpVersion === '1.1' && countHosts(request.rawHeaders) !== 1) {
      return this.refuse(response, 'INVALID_ARGUMENT', 'one header Host is required');
    }
    const { expect } = request.headers;
    if (expect !== undefined && !/^100-continue$/i.test(expect)) {
      return this.refuse(response, 'INVALID_ARGUMENT', 'the only supported value of the header Expect is 100-continue');
    }
    this.handle(request, response);
  }

  /** Handles the end of a response, or of its connection. */
  private onResponseClosed(request: IncomingMessage, socket: Socket, connection: Connection): void {
    connection.outstanding -= 1;
    if (socket.destroyed || socket.writableEnded) return;
    if (connection.isPaused && connection.outstanding <= this.limits.readAhead) {
      connection.isPaused = false;
      resumeRequests(socket);
    }
    if (!request.complete) {
      readOn(request);
      lingering(socket, this.limits.lingerTimeout, request);
    }
    const next = connection.queue.shift();
    // A request with a malformed body already has its response.
    if (next) {
      if (!next.writableEnded) this.take(next.req, next);
    } else if (connection.refusal !== undefined) this.endWith(socket, connection.refusal);
    else if (this.isClosing && request.complete) socket.destroySoon();
  }

  /** Rejects malformed input, after the pending responses. */
  private refuseMalformed(error: Error, socket: Socket): void {
    const connection = this.open.get(socket);
    // The parser reports the error again for every further piece.
    if (connection?.isBroken) return;
    if (!connection || !socket.writable || socket.bytesRead === 0 || codeOf(error) === 'ECONNRESET') {
      return void socket.destroy();
    }
    connection.isBroken = true;
    const { last } = connection;
    const request = last?.req;
    if (!last || !request || request.complete) {
      const refusal = this.rawRefusal(socket, 'INVALID_ARGUMENT', messageOf(error));
      if (connection.outstanding === 0) this.endWith(socket, refusal);
      else connection.refusal = refusal;
      return;
    }
    // The body of the latest request is malformed: its reader reports the error.
    if (last.headersSent) return void socket.destroy();
    last.setHeader('connection', 'close');
    if (request.listenerCount('error') > 0) request.emit('error', error);
    else this.refuse(last, 'INVALID_ARGUMENT', messageOf(error), connection.queue.includes(last));
  }

  /** `isUnseen` means the handler has not seen the request. */
  private refuse(response: ServerResponse, code: ErrorCode, message: string, isUnseen = true): void {
    if (response.headersSent) return;
    // The handler may have set an id, under which the request is logged.
    const given = response.getHeader('x-request-id');
    const requestId = typeof given === 'string' ? given : newRequestId();
    const body = errorBody(code, message, requestId);
    response
      .writeHead(codes[code].http, {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(body),
        'x-request-id': requestId,
        connection: 'close',
      })
      .end(body);
    if (isUnseen) this.refused({ code, requestId, socket: response.req.socket, request: response.req });
  }

  /** Returns a complete response for a connection without a request. */
  private rawRefusal(socket: Socket, code: ErrorCode, message: string): string {
    const requestId = newRequestId();
    this.refused({ code, requestId, socket, request: undefined });
    return rawResponse(code, errorBody(code, message, requestId), requestId);
  }

  /** Handles CONNECT: stops reading and rejects it after the pending responses. */
  private refuseTunnel(socket: Socket): void {
    const connection = this.open.get(socket);
    const refusal = this.rawRefusal(socket, 'NOT_FOUND', 'route not found');
    if (!connection || connection.outstanding === 0) return this.endWith(socket, refusal);
    connection.isBroken = true;
    connection.refusal = refusal;
  }

  private endWith(socket: Socket, bytes: string): void {
    endConnection(socket, bytes, this.limits.lingerTimeout);
  }

  /** Disconnects clients that do not read their responses, and ends requests whose bodies arrive too slowly. */
  private sweep(): void {
    const now = performance.now();
    for (const [socket, connection] of this.open) {
      if (socket.writableLength === 0 || socket.bytesWritten !== connection.written) {
        connection.written = socket.bytesWritten;
        connection.writtenAt = now;
      } else if (now - connection.writtenAt >= this.limits.responseTimeout) {
        socket.destroy();
        continue;
      }
      const { last, lastAt, lastRead, outstanding } = connection;
      if (outstanding !== 1 || !last || last.req.complete) continue;
      const prolonged = ((socket.bytesRead - lastRead) * 1000) / this.limits.bodyBytesPerSecond;
      if (now - lastAt > this.limits.bodyTimeout + prolonged) this.refuseMalformed(new BodyTimeout(), socket);
    }
  }
}

/** Writes a final message to a connection and closes it, whether or not the client closes its side. */
export function endConnection(
  socket: Duplex,
  bytes: string,
  lingerMilliseconds: number = defaultHttpLimits.lingerTimeout,
): void {
  socket.end(bytes);
  socket.resume();
  lingering(socket, lingerMilliseconds);
}

/** Node's parser. */
interface RequestParser {
  resume(): void;
  [callback: number]: unknown;
}

/** A socket with the fields by which Node's HTTP server pauses clients that do not read. */
type RequestSocket = Socket & { _paused?: boolean; parser?: RequestParser | null };

/**
 * Stops reading requests from a connection. Needs the mark, because the end of each request resumes reading otherwise.
 */
function pauseRequests(socket: RequestSocket): void {
  socket._paused = true;
  socket.pause();
}

function resumeRequests(socket: RequestSocket): void {
  socket._paused = false;
  socket.parser?.resume();
  socket.resume();
}

/** Requests whose bodies may come in any pieces. */
const inAnyPieces = new WeakSet<IncomingMessage>();

/** Lets the body of an admitted request come in any pieces: a file whose lines are sent one by one, for example. */
export const allowAnyPieces = (request: IncomingMessage): void => void inAnyPieces.add(request);

/** The reader may have stopped in the middle of the body; without `readable` listeners Node resumes reading. */
const readOn = (request: IncomingMessage): void => void request.removeAllListeners('readable').resume();

class BodyTimeout extends Error {
  readonly code = 'ERR_HTTP_REQUEST_TIMEOUT';
}

/**
 * Closing a socket with unread bytes resets the connection, and the client may lose the response: so the bytes are read
 * for a while. If the request completes in the meantime, the connection is kept.
 */
function lingering(socket: Duplex, milliseconds: number, request?: IncomingMessage): void {
  const timer = setTimeout(() => request?.complete || socket.destroy(), milliseconds);
  timer.unref();
  socket.once('close', () => clearTimeout(timer));
}

function countHosts(rawHeaders: readonly string[]): number {
  let count = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index]!;
    if (name.length === 4 && name.toLowerCase() === 'host') count += 1;
  }
  return count;
}

function rawResponse(code: ErrorCode, body: string, requestId: string): string {
  const { http } = codes[code];
  return [
    `HTTP/1.1 ${http} ${http === 404 ? 'Not Found' : 'Bad Request'}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    `x-request-id: ${requestId}`,
    `date: ${new Date().toUTCString()}`,
    'connection: close',
    '',
    body,
  ].join('\r\n');
}

const codeOf = (error: Error): unknown => ('code' in error ? error.code : undefined);

/** Returns a message for the client; the parser's message might quote what was sent. */
function messageOf(error: Error): string {
  switch (codeOf(error)) {
    case 'HPE_HEADER_OVERFLOW':
      return 'the headers are too large';
    case 'HPE_CHUNK_EXTENSIONS_OVERFLOW':
      return 'the chunk extensions are too large';
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return 'the request did not arrive in time';
    default:
      return 'the request is not well-formed HTTP';
  }
}

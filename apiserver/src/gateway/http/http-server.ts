// An HTTP/1.1 server as every port of a process is one: bounded in time, size and number, answering malformed requests in the
// shape of every other error, and drained without cutting off a request. RFC 9112; SPEC, Errors.
import { Server, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { codes, type ErrorCode } from '../../platform/errors.ts';
import { newRequestId } from '../../platform/ids.ts';

/** What one client may take of a server. Times are in milliseconds. */
export interface HttpLimits {
  /** From the first byte of a request to the end of its headers. */
  readonly headersTimeout: number;
  /** From the headers of a request to the end of its body, and how many bytes a second prolong it: uploads may be large. */
  readonly bodyTimeout: number;
  readonly bodyBytesPerSecond: number;
  /** How long a connection may lie idle between requests: longer than load balancers keep theirs (60 s). */
  readonly keepAliveTimeout: number;
  /** How long a client may take to read an answer. */
  readonly answerTimeout: number;
  /** How long the rest of a body is read and thrown away once its request is answered, so that the client reads the answer. */
  readonly lingerTimeout: number;
  /** Bytes of the request line and the headers. */
  readonly headerBytes: number;
  /** Connections at a time; one more is closed at once. */
  readonly connections: number;
  /** Requests of one connection that wait for their answers before no more of it is read. */
  readonly readAhead: number;
  /** Those that may come in what has been read by then; a connection with more is cut. */
  readonly pipelined: number;
}

export const defaultHttpLimits: HttpLimits = {
  headersTimeout: 15_000,
  bodyTimeout: 60_000,
  bodyBytesPerSecond: 16 * 1024,
  keepAliveTimeout: 65_000,
  answerTimeout: 120_000,
  lingerTimeout: 5_000,
  headerBytes: 16 * 1024,
  connections: 10_000,
  readAhead: 4,
  pipelined: 1000,
};

/** A connection that speaks HTTP. */
interface Connection {
  /** Requests that have no whole answer yet. */
  outstanding: number;
  /** Those among them that nobody has looked at yet. */
  readonly queue: ServerResponse[];
  /** The answer to the newest request, when its headers had come, and how many bytes the client had sent by then. */
  last: ServerResponse | undefined;
  lastAt: number;
  lastRead: number;
  /** Nothing is read until some of those requests are answered. */
  isPaused: boolean;
  /** What the client sent is no HTTP any more: nothing further is read. */
  isBroken: boolean;
  /** Sent once the answers before it are out. */
  refusal: string | undefined;
  /** Bytes handed to the system when the sweep last looked, and since when that has not changed. */
  written: number;
  writtenAt: number;
}

/** A request that is refused before anybody has looked at it. */
export interface Refusal {
  readonly code: ErrorCode;
  readonly requestId: string;
  readonly socket: Socket;
  /** Absent when what came is no request. */
  readonly request: IncomingMessage | undefined;
}

/** What an HttpServer may be told besides its handler. */
export interface HttpServerOptions {
  readonly limits?: Partial<HttpLimits>;
  /** Which requests for another protocol are left to the listeners of `upgrade`; the others are plain requests. */
  readonly upgrades?: (request: IncomingMessage) => boolean;
  /** Hears of what the handler does not see. */
  readonly refused?: (refusal: Refusal) => void;
}

/** Requests whose clients wait to be told that they may send the body (Expect: 100-continue). */
const waiting = new WeakMap<IncomingMessage, { response: ServerResponse; server: HttpServer }>();

/** To be called before a body is read: tells a client that waits for it to send. */
export function continueRequest(request: IncomingMessage): void {
  const waits = waiting.get(request);
  if (!waits) return;
  waiting.delete(request);
  if (!waits.server.isDraining) waits.response.removeHeader('connection');
  waits.response.writeContinue();
}

/** The body of an error. */
export const errorBody = (code: ErrorCode | number, message: string, requestId: string): string =>
  JSON.stringify({ code, message, request_id: requestId });

/** The server; `handle` sees well-formed requests only. */
export class HttpServer extends Server {
  /** Whether clients are being sent away: every answer closes its connection. */
  isDraining = false;
  private readonly open = new Map<Socket, Connection>();
  /** Connections that speak another protocol now. */
  private readonly upgraded = new Set<Socket>();
  private readonly handle: (request: IncomingMessage, response: ServerResponse) => void;
  private readonly limits: HttpLimits;
  private readonly refused: (refusal: Refusal) => void;
  private isClosing = false;

  constructor(handle: (request: IncomingMessage, response: ServerResponse) => void, options: HttpServerOptions = {}) {
    const limits = { ...defaultHttpLimits, ...options.limits };
    super({
      headersTimeout: limits.headersTimeout,
      // Node's own would cut a large body however fast it comes.
      requestTimeout: 0,
      keepAliveTimeout: limits.keepAliveTimeout,
      connectionsCheckingInterval: Math.min(1000, limits.headersTimeout),
      maxHeaderSize: limits.headerBytes,
      // Ours says it in the shape of the other errors.
      requireHostHeader: false,
      shouldUpgradeCallback: (request) => this.takesUpgrade(request, options.upgrades),
    });
    this.handle = handle;
    this.limits = limits;
    this.refused = options.refused ?? (() => undefined);
    this.maxConnections = limits.connections;
    this.on('connection', (socket) => this.add(socket));
    this.on('request', (request, response) => this.receive(request, response));
    this.on('checkContinue', (request: IncomingMessage, response: ServerResponse) => {
      // Unless the body is asked for, the client cannot know whether we wait for it: the connection ends.
      response.setHeader('connection', 'close');
      waiting.set(request, { response, server: this });
      this.receive(request, response);
    });
    this.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) =>
      this.receive(request, response),
    );
    this.on('connect', (_request, stream) => this.refuseTunnel(stream as Socket));
    this.on('clientError', (error, stream) => this.refuseMalformed(error, stream as Socket));
    const sweep = setInterval(() => this.sweep(), Math.min(5000, limits.answerTimeout / 4, limits.bodyTimeout / 4));
    sweep.unref();
    this.once('close', () => clearInterval(sweep));
  }

  /** From now on every answer closes its connection, so that clients go elsewhere; new connections are still taken. */
  drain(): void {
    this.isDraining = true;
    for (const { last, outstanding } of this.open.values()) {
      if (outstanding > 0 && last && !last.headersSent) last.setHeader('connection', 'close');
    }
  }

  /** Takes no more connections, closes idle ones, and resolves when the running requests are answered or the time is up. */
  async closeWithin(milliseconds: number): Promise<void> {
    this.drain();
    this.isClosing = true;
    const closed = new Promise<void>((resolve) => this.close(() => resolve()));
    // Whoever has only begun to send a request gets a moment to finish it.
    const partial = setTimeout(
      () => this.cut((connection) => connection.outstanding === 0),
      Math.min(milliseconds, 1000),
    );
    const late = setTimeout(() => {
      this.cut(() => true);
      for (const socket of this.upgraded) socket.destroy();
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
    // The new protocol's first bytes must not overtake the answers that are still to come.
    if (this.open.get(request.socket)?.outstanding !== 0) return false;
    // From here on the connection is the new protocol's business.
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
      isBroken: false,
      refusal: undefined,
      written: 0,
      writtenAt: performance.now(),
    };
    this.open.set(socket, connection);
    socket.once('close', () => this.open.delete(socket));
    // Node takes its own listener away from a connection that changes its protocol, and an error that nobody hears would end
    // the process. What follows from it, `close` tells.
    socket.on('error', () => undefined);
    // Node ends a connection this way behind an answer with `Connection: close`, at once: a client that still sends its body
    // would lose the answer.
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
    if (!connection) return;
    const { last } = connection;
    if (this.isDraining) {
      if (connection.outstanding > 0 && last) {
        // An earlier answer has said that the connection ends with it: what follows is not taken.
        if (last.headersSent) return;
        last.removeHeader('connection');
      }
      response.setHeader('connection', 'close');
    }
    connection.last = response;
    connection.lastAt = performance.now();
    connection.lastRead = socket.bytesRead;
    connection.outstanding += 1;
    response.once('close', () => this.answered(request, socket, connection));
    if (connection.outstanding > this.limits.pipelined) return void socket.destroy();
    if (connection.outstanding > this.limits.readAhead) {
      connection.isPaused = true;
      pauseRequests(socket);
    }
    // One after the other: what a client pipelines may depend on what it sent before (RFC 9112, 9.3.2), and a client that does
    // not read has one answer in our memory, not a thousand.
    if (connection.outstanding > 1) connection.queue.push(response);
    else this.take(request, response);
  }

  private take(request: IncomingMessage, response: ServerResponse): void {
    if (request.httpVersion === '1.1' && countHosts(request.rawHeaders) !== 1) {
      return this.refuse(response, 'INVALID_ARGUMENT', 'one header Host is required');
    }
    const { expect } = request.headers;
    if (expect !== undefined && !/^100-continue$/i.test(expect)) {
      return this.refuse(response, 'INVALID_ARGUMENT', 'of the header Expect only 100-continue is known');
    }
    this.handle(request, response);
  }

  /** An answer is out, or its connection is gone. */
  private answered(request: IncomingMessage, socket: Socket, connection: Connection): void {
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
    // One whose body was malformed has been answered already.
    if (next) {
      if (!next.writableEnded) this.take(next.req, next);
    } else if (connection.refusal !== undefined) this.endWith(socket, connection.refusal);
    else if (this.isClosing && request.complete) socket.destroySoon();
  }

  /** What is no HTTP is answered as such, after the answers that are still to come. */
  private refuseMalformed(error: Error, socket: Socket): void {
    const connection = this.open.get(socket);
    // The parser complains again about every further piece.
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
    // It is the body of the newest request that is wrong: whoever reads it answers for it.
    if (last.headersSent) return void socket.destroy();
    last.setHeader('connection', 'close');
    if (request.listenerCount('error') > 0) request.emit('error', error);
    else this.refuse(last, 'INVALID_ARGUMENT', messageOf(error), connection.queue.includes(last));
  }

  /** `isUnseen`: the handler has not seen the request. */
  private refuse(response: ServerResponse, code: ErrorCode, message: string, isUnseen = true): void {
    if (response.headersSent) return;
    // Whoever has begun with the request has named it, and logs it by that name.
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

  /** A whole answer for a connection without a request. */
  private rawRefusal(socket: Socket, code: ErrorCode, message: string): string {
    const requestId = newRequestId();
    this.refused({ code, requestId, socket, request: undefined });
    return rawAnswer(code, errorBody(code, message, requestId), requestId);
  }

  /** CONNECT: nothing further is read, and the refusal waits for its turn. */
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

  /** Cuts off clients that do not read their answers, and ends requests whose bodies come too slowly. */
  private sweep(): void {
    const now = performance.now();
    for (const [socket, connection] of this.open) {
      if (socket.writableLength === 0 || socket.bytesWritten !== connection.written) {
        connection.written = socket.bytesWritten;
        connection.writtenAt = now;
      } else if (now - connection.writtenAt >= this.limits.answerTimeout) {
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

/** Says a last thing on a connection and closes it, whether the client closes its side or not. */
export function endConnection(
  socket: Duplex,
  bytes: string,
  lingerMilliseconds: number = defaultHttpLimits.lingerTimeout,
): void {
  socket.end(bytes);
  socket.resume();
  lingering(socket, lingerMilliseconds);
}

/** A connection as Node's HTTP server marks it when a client does not take its answers. */
type RequestSocket = Socket & { _paused?: boolean; parser?: { resume(): void } | null };

/** Takes no further requests of a connection. Only the mark lasts: the end of every request starts reading anew otherwise. */
function pauseRequests(socket: RequestSocket): void {
  socket._paused = true;
  socket.pause();
}

function resumeRequests(socket: RequestSocket): void {
  socket._paused = false;
  socket.parser?.resume();
  socket.resume();
}

/** Whoever read the body may have stopped in the middle of it, which Node takes for reading on. */
const readOn = (request: IncomingMessage): void => void request.removeAllListeners('readable').resume();

class BodyTimeout extends Error {
  readonly code = 'ERR_HTTP_REQUEST_TIMEOUT';
}

/**
 * Closing with bytes unread resets the connection, and the client may lose the answer: so they are read for a while. A
 * connection whose request has become complete meanwhile goes on.
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

function rawAnswer(code: ErrorCode, body: string, requestId: string): string {
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

/** In words for the client; the parser's own words may quote what it sent. */
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

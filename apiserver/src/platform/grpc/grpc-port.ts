// A gRPC port: accepts connections, limits their number and duration, and hands them to a grpc-js server. On shutdown
// it drains them without cutting off calls and without waiting for unresponsive clients.
import { once } from 'node:events';
import { type AddressInfo, createServer, type Server as Listener, type Socket } from 'node:net';
import {
  type ConnectionInjector,
  logVerbosity,
  Server,
  ServerCredentials,
  ServerInterceptingCall,
  type ServerInterceptingCallInterface,
  type ServerInterceptor,
  type ServerOptions,
  type ServiceDefinition,
  setLogVerbosity,
  status,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import { limitConnections } from '../addresses/limit-connections.ts';
import type { ServiceHost } from './grpc-health.ts';

/** Limits on what a client may use of a server. Times are in milliseconds. */
export interface GrpcLimits {
  /** From opening a connection to the end of the client's preface (RFC 9113, section 3.4). */
  readonly prefaceTimeout: number;
  /** From the headers of a call with a single request message to the end of that message. */
  readonly requestTimeout: number;
  /** From the status of a call to the end of its stream: time for a client to read what was sent before. */
  readonly responseTimeout: number;
  /** How long a connection may be without a call; clients reconnect by themselves. */
  readonly idleTimeout: number;
  /**
   * Age, give or take a tenth, at which a connection accepts no further calls. Its client then reconnects, and a load
   * balancer can choose again. Infinity for no limit.
   */
  readonly connectionAge: number;
  /**
   * Minimum time the calls of such a connection may still run; up to half as long again at random, so that not all end
   * at once.
   */
  readonly ageGrace: number;
  /** Interval of keepalive pings, and the timeout for their response. */
  readonly keepaliveTime: number;
  readonly keepaliveTimeout: number;
  /** How long a client may keep its side open after ours is closed. */
  readonly lingerTimeout: number;
  /** Maximum concurrent connections; further ones are closed at once. */
  readonly connections: number;
  /** Maximum concurrent calls per connection; a client queues further ones (RFC 9113, section 5.1.2). */
  readonly streams: number;
  /**
   * Calls of a connection that its client may cancel at once, and a second after that, before the connection ends with all its
   * calls; undefined: Node's defaults, 1000 and 33.
   */
  readonly cancellations?: { readonly burst: number; readonly perSecond: number };
}

export const defaultGrpcLimits: GrpcLimits = {
  prefaceTimeout: 15_000,
  requestTimeout: 60_000,
  responseTimeout: 120_000,
  idleTimeout: 300_000,
  connectionAge: 1_800_000,
  ageGrace: 1_800_000,
  keepaliveTime: 60_000,
  keepaliveTimeout: 20_000,
  lingerTimeout: 1_000,
  connections: 10_000,
  streams: 1_000,
};

// grpc-js logs invalid metadata to stderr verbatim, which would expose a mistyped credential.
setLogVerbosity(logVerbosity.NONE);

/** Size of the preface and of the header of its SETTINGS frame. */
const prefaceBytes = 24 + 9;

/** grpc-js treats this value as no limit. */
const maxAge = 2 ** 31 - 1;

interface Connection {
  /** Calls without a status so far. */
  readonly calls: Set<ServerInterceptingCallInterface>;
  /** Bytes transferred in both directions at the last check, and since when they have not changed. */
  moved: number;
  movedAt: number;
}

/** The port. Services must be added before it listens. */
export class GrpcPort implements ServiceHost {
  private readonly limits: GrpcLimits;
  private readonly random: () => number;
  private readonly server: Server;
  private readonly listener: Listener;
  private readonly injector: ConnectionInjector;
  private readonly open = new Map<Socket, Connection>();
  /** Connections of another listener, also those whose TLS handshake is not complete. */
  private readonly accepted = new Set<Socket>();
  /** The same, keyed by the peer's `address:port`, which is how a call identifies its connection. */
  private readonly byPeer = new Map<string, Connection>();

  /** With `listen` another listener accepts the connections, such as one of TLS. */
  constructor(
    options: ServerOptions = {},
    limits: Partial<GrpcLimits> = {},
    random: () => number = Math.random,
    listen?: (limits: GrpcLimits, accept: (socket: Socket) => void) => Listener,
  ) {
    this.random = random;
    this.limits = { ...defaultGrpcLimits, ...limits };
    this.server = new Server({
      'grpc.max_concurrent_streams': this.limits.streams,
      'grpc.max_connection_idle_ms': this.limits.idleTimeout,
      'grpc.max_connection_age_ms': Math.min(this.limits.connectionAge, maxAge),
      'grpc.keepalive_time_ms': this.limits.keepaliveTime,
      'grpc.keepalive_timeout_ms': this.limits.keepaliveTimeout,
      ...options,
      // A status passes through the interceptors before the one that sends it, so those also see what the port rejects.
      interceptors: [...(options.interceptors ?? []), this.interceptor()],
    });
    const { cancellations } = this.limits;
    if (cancellations) {
      // grpc-js has no option for them.
      const { commonServerOptions } = this.server as unknown as { readonly commonServerOptions: object };
      const { burst: streamResetBurst, perSecond: streamResetRate } = cancellations;
      Object.assign(commonServerOptions, { streamResetBurst, streamResetRate });
    }
    this.injector = this.server.createConnectionInjector(ServerCredentials.createInsecure());
    const accept = (socket: Socket): void => this.add(socket);
    this.listener = listen?.(this.limits, accept) ?? createServer({ noDelay: true }, accept);
    if (listen) this.listener.on('connection', (socket: Socket) => this.keep(socket));
    if (!listen) limitConnections(this.listener, this.limits.connections);
  }

  /** Adds a service whose methods are gRPC handlers. */
  addService(definition: ServiceDefinition, implementation: UntypedServiceImplementation): void {
    this.server.addService(definition, implementation);
  }

  /** Starts listening and returns the port, which the system chooses if 0 is given. Rejects if it is in use. */
  async listen(host: string, port: number): Promise<number> {
    this.listener.listen(port, host);
    await once(this.listener, 'listening');
    return (this.listener.address() as AddressInfo).port;
  }

  /** Stops accepting connections and calls; resolves when running calls are finished or the time is up. */
  async closeWithin(milliseconds: number): Promise<void> {
    const closed = new Promise<void>((resolve) => this.listener.close(() => resolve()));
    this.server.tryShutdown(() => undefined);
    const sweep = setInterval(() => this.endQuiet(), Math.min(250, this.limits.lingerTimeout));
    const late = setTimeout(() => {
      this.server.forceShutdown();
      for (const socket of [...this.open.keys(), ...this.accepted]) socket.destroy();
    }, milliseconds);
    await closed;
    clearInterval(sweep);
    clearTimeout(late);
  }

  private keep(socket: Socket): void {
    this.accepted.add(socket);
    socket.setNoDelay(true);
    socket.once('close', () => this.accepted.delete(socket));
  }

  private add(socket: Socket): void {
    const connection: Connection = { calls: new Set(), moved: 0, movedAt: performance.now() };
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.open.set(socket, connection);
    this.byPeer.set(peer, connection);
    const preface = setTimeout(() => {
      if (socket.bytesRead < prefaceBytes) socket.destroy();
    }, this.limits.prefaceTimeout);
    const old = this.limits.connectionAge < maxAge ? setTimeout(() => this.endOld(socket), this.maxLife()) : undefined;
    // Our side is closed and everything is sent: a client that keeps its own side open is not waited for.
    socket.once('finish', () => setTimeout(() => socket.destroy(), this.limits.lingerTimeout).unref());
    socket.once('close', () => {
      clearTimeout(preface);
      clearTimeout(old);
      this.open.delete(socket);
      if (this.byPeer.get(peer) === connection) this.byPeer.delete(peer);
    });
    this.injector.injectConnection(socket);
  }

  /** Returns the milliseconds after which the calls of a connection end, whatever age grpc-js assumes. */
  private maxLife(): number {
    const { connectionAge, ageGrace } = this.limits;
    return connectionAge * 1.1 + ageGrace * (1 + this.random() / 2);
  }

  /** Ends what still runs on a connection that accepts no more calls; its client should restart it on another one. */
  private endOld(socket: Socket): void {
    for (const call of this.open.get(socket)?.calls ?? []) {
      call.sendStatus({ code: status.UNAVAILABLE, details: 'the connection has reached its maximum age: reconnect' });
    }
    setTimeout(() => socket.destroy(), this.limits.lingerTimeout).unref();
  }

  /** Closes connections without a call on which nothing moves: those that have sent partial headers and stopped. */
  private endQuiet(): void {
    const now = performance.now();
    for (const [socket, connection] of this.open) {
      const moved = socket.bytesRead + socket.bytesWritten;
      if (connection.calls.size > 0 || moved !== connection.moved) {
        connection.moved = moved;
        connection.movedAt = now;
      } else if (now - connection.movedAt >= this.limits.lingerTimeout) {
        socket.destroy();
      }
    }
  }

  /**
   * Tracks the calls of each connection and ends unary requests whose single message is missing or not the only one.
   */
  private interceptor(): ServerInterceptor {
    return (method, call) => {
      let messages = 0;
      // As in gRPC's status codes: UNIMPLEMENTED for a wrong number of request messages.
      const refuse = (details: string): void => call.sendStatus({ code: status.UNIMPLEMENTED, details });
      const connection = this.byPeer.get(call.getPeer());
      connection?.calls.add(call);
      const slow = method.requestStream
        ? undefined
        : setTimeout(
            () => call.sendStatus({ code: status.INVALID_ARGUMENT, details: 'the request did not arrive in time' }),
            this.limits.requestTimeout,
          );
      const end = (): void => {
        clearTimeout(slow);
        connection?.calls.delete(call);
      };
      return new ServerInterceptingCall(call, {
        start: (next) =>
          next({
            onReceiveMessage: (message, proceed) => {
              messages += 1;
              if (method.requestStream || messages === 1) proceed(message);
              else refuse('the request has more than one message: the method takes exactly one');
            },
            onReceiveHalfClose: (proceed) => {
              clearTimeout(slow);
              if (method.requestStream || messages === 1) proceed();
              else refuse('the request has no message: the method takes exactly one');
            },
            onCancel: end,
          }),
        sendStatus: (outcome, next) => {
          end();
          next(outcome);
        },
      });
    };
  }
}

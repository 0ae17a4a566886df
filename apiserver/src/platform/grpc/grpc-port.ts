// A port that speaks gRPC: its connections are taken here, bounded in number and time, and handed to a grpc-js server; at the
// end they are drained without cutting off a call, and without waiting for clients that do not answer.
import { once } from 'node:events';
import { createServer, type AddressInfo, type Server as Listener, type Socket } from 'node:net';
import {
  logVerbosity,
  Server,
  ServerCredentials,
  ServerInterceptingCall,
  setLogVerbosity,
  status,
  type ConnectionInjector,
  type ServerInterceptingCallInterface,
  type ServerInterceptor,
  type ServerOptions,
  type ServiceDefinition,
  type UntypedServiceImplementation,
} from '@grpc/grpc-js';
import type { ServiceHost } from './grpc-health.ts';

/** What one client may take of a server. Times are in milliseconds. */
export interface GrpcLimits {
  /** From the opening of a connection to the end of the client's preface (RFC 9113, 3.4). */
  readonly prefaceTimeout: number;
  /** From the headers of a call whose request is one message to the end of that message. */
  readonly requestTimeout: number;
  /** How long a connection may be without a call; clients connect again by themselves. */
  readonly idleTimeout: number;
  /**
   * How old a connection gets, give or take a tenth, before it takes no further calls: its client connects again, and a load
   * balancer chooses anew. Infinity: as old as it likes.
   */
  readonly connectionAge: number;
  /** How long the calls of such a connection may still run, at least; half as long again by chance, so that not all end at once. */
  readonly ageGrace: number;
  /** How often a client is asked whether it is still there, and how long it may take to say so. */
  readonly keepaliveTime: number;
  readonly keepaliveTimeout: number;
  /** How long a client may leave its side open once ours is closed. */
  readonly lingerTimeout: number;
  /** Connections at a time; one more is closed at once. */
  readonly connections: number;
  /** Calls of one connection at a time; a client holds further ones back until others have ended (RFC 9113, 5.1.2). */
  readonly streams: number;
}

export const defaultGrpcLimits: GrpcLimits = {
  prefaceTimeout: 15_000,
  requestTimeout: 60_000,
  idleTimeout: 300_000,
  connectionAge: 1_800_000,
  ageGrace: 1_800_000,
  keepaliveTime: 60_000,
  keepaliveTimeout: 20_000,
  lingerTimeout: 1_000,
  connections: 10_000,
  streams: 1_000,
};

// grpc-js writes metadata that it cannot take to stderr as they are: the credential of whoever got a character of it wrong.
setLogVerbosity(logVerbosity.NONE);

/** The preface and the header of the SETTINGS frame that belongs to it. */
const prefaceBytes = 24 + 9;

/** grpc-js takes this for no age at all. */
const longestAge = 2 ** 31 - 1;

interface Connection {
  /** Calls that have no status yet. */
  readonly calls: Set<ServerInterceptingCallInterface>;
  /** Bytes moved either way when it was last looked at, and since when that has not changed. */
  moved: number;
  movedAt: number;
}

/** The port. Services are added first, then it listens. */
export class GrpcPort implements ServiceHost {
  private readonly limits: GrpcLimits;
  private readonly random: () => number;
  private readonly server: Server;
  private readonly listener: Listener;
  private readonly injector: ConnectionInjector;
  private readonly open = new Map<Socket, Connection>();
  /** The same by `address:port` of the peer, which is how a call names its connection. */
  private readonly byPeer = new Map<string, Connection>();

  constructor(options: ServerOptions = {}, limits: Partial<GrpcLimits> = {}, random: () => number = Math.random) {
    this.random = random;
    this.limits = { ...defaultGrpcLimits, ...limits };
    this.server = new Server({
      'grpc.max_concurrent_streams': this.limits.streams,
      'grpc.max_connection_idle_ms': this.limits.idleTimeout,
      'grpc.max_connection_age_ms': Math.min(this.limits.connectionAge, longestAge),
      'grpc.keepalive_time_ms': this.limits.keepaliveTime,
      'grpc.keepalive_timeout_ms': this.limits.keepaliveTimeout,
      ...options,
      // What sends a status sends it through those that stand before it, which see in this way what the port refuses.
      interceptors: [...(options.interceptors ?? []), this.interceptor()],
    });
    this.injector = this.server.createConnectionInjector(ServerCredentials.createInsecure());
    this.listener = createServer({ noDelay: true }, (socket) => this.add(socket));
    this.listener.maxConnections = this.limits.connections;
  }

  /** Adds a service whose methods are gRPC handlers. */
  addService(definition: ServiceDefinition, implementation: UntypedServiceImplementation): void {
    this.server.addService(definition, implementation);
  }

  /** Listens; answers the port, which the system chooses when 0 is asked for. Rejects when it is taken. */
  async listen(host: string, port: number): Promise<number> {
    this.listener.listen(port, host);
    await once(this.listener, 'listening');
    return (this.listener.address() as AddressInfo).port;
  }

  /** Takes no more connections or calls, and resolves when the running calls are answered or the time is up. */
  async closeWithin(milliseconds: number): Promise<void> {
    const closed = new Promise<void>((resolve) => this.listener.close(() => resolve()));
    this.server.tryShutdown(() => undefined);
    const sweep = setInterval(() => this.endQuiet(), Math.min(250, this.limits.lingerTimeout));
    const late = setTimeout(() => {
      this.server.forceShutdown();
      for (const socket of this.open.keys()) socket.destroy();
    }, milliseconds);
    await closed;
    clearInterval(sweep);
    clearTimeout(late);
  }

  private add(socket: Socket): void {
    const connection: Connection = { calls: new Set(), moved: 0, movedAt: performance.now() };
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.open.set(socket, connection);
    this.byPeer.set(peer, connection);
    const preface = setTimeout(() => {
      if (socket.bytesRead < prefaceBytes) socket.destroy();
    }, this.limits.prefaceTimeout);
    const old =
      this.limits.connectionAge < longestAge ? setTimeout(() => this.endOld(socket), this.longestLife()) : undefined;
    // Our side is closed, all that was to be said is sent: a client that keeps its own side open is not waited for.
    socket.once('finish', () => setTimeout(() => socket.destroy(), this.limits.lingerTimeout).unref());
    socket.once('close', () => {
      clearTimeout(preface);
      clearTimeout(old);
      this.open.delete(socket);
      if (this.byPeer.get(peer) === connection) this.byPeer.delete(peer);
    });
    this.injector.injectConnection(socket);
  }

  /** Milliseconds after which the calls of a connection end, whatever grpc-js has made of its age. */
  private longestLife(): number {
    const { connectionAge, ageGrace } = this.limits;
    return connectionAge * 1.1 + ageGrace * (1 + this.random() / 2);
  }

  /** Ends what still runs on a connection that takes no calls any more: its client is to begin it again on another one. */
  private endOld(socket: Socket): void {
    for (const call of this.open.get(socket)?.calls ?? []) {
      call.sendStatus({ code: status.UNAVAILABLE, details: 'the connection has reached its age: connect again' });
    }
    setTimeout(() => socket.destroy(), this.limits.lingerTimeout).unref();
  }

  /** Ends connections without a call on which nothing moves: those that have begun to send headers and not gone on. */
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

  /** Counts the calls of each connection, and ends those whose one message does not come, or is not the only one. */
  private interceptor(): ServerInterceptor {
    return (method, call) => {
      let messages = 0;
      // gRPC's status codes, UNIMPLEMENTED: a request of another number of messages than its method takes.
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

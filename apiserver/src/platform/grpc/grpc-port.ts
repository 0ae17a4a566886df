// A gRPC port: accepts connections, limits their number and duration, and hands them to a grpc-js server. On shutdown
// it drains them without cutting off calls and without waiting for unresponsive clients.
import type { Http2Server, ServerHttp2Session } from 'node:http2';
import { createServer, type Server as Listener, type Socket } from 'node:net';
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
import { Acceptors } from '../addresses/acceptors.ts';
import { addressBlock } from '../addresses/address-block.ts';
import { limitConnections } from '../addresses/limit-connections.ts';
import { type Clock, systemClock } from '../clock.ts';
import { TokenBuckets } from '../token-bucket.ts';
import type { ServiceHost } from './grpc-health.ts';
import { limitParts } from './message-parts.ts';

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
  /** The same for a connection of a proxy, which has the calls of many clients. */
  readonly proxyStreams: number;
  /**
   * Calls that a client may cancel. Node ends a connection that cancels more, with all its calls. An address (IPv6: /64) that has
   * cancelled five times as many within a second of their beginning is not accepted for some seconds: a call costs much more than
   * its client pays to begin and cancel it.
   */
  readonly cancellations: Cancellations;
  /** Calls that a proxy may cancel, whose connections have the calls of many clients. Its address is always accepted. */
  readonly proxyCancellations: Cancellations;
  /** Maximum bytes of the metadata of a call, counted as in RFC 9113, section 6.5.2. */
  readonly metadataBytes: number;
}

/** How many calls may be cancelled at once, and a second after that. */
export interface Cancellations {
  readonly burst: number;
  readonly perSecond: number;
}

/** What a port may be given besides its limits. */
export interface GrpcPortParts {
  /** Accepts the connections instead of the port itself, as for TLS. */
  readonly listen?: ((limits: GrpcLimits, accept: (socket: Socket) => void) => Listener) | undefined;
  /** Reports whether a peer's address is that of a proxy; by default none is. */
  readonly isProxy?: (address: string) => boolean;
  readonly random?: () => number;
  readonly clock?: Clock;
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
  proxyStreams: 1_000,
  cancellations: { burst: 200, perSecond: 100 },
  proxyCancellations: { burst: 1_000, perSecond: 100 },
  metadataBytes: 16 * 1024,
};

// grpc-js logs invalid metadata to stderr verbatim, which would expose a mistyped credential.
setLogVerbosity(logVerbosity.NONE);

/** Size of the preface and of the header of its SETTINGS frame. */
const prefaceBytes = 24 + 9;

/** Calls that are cancelled sooner count for their address. */
const earlyMilliseconds = 1000;

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
  private readonly clock: Clock;
  private readonly server: Server;
  /** Takes the connections. */
  private readonly listener: Listener;
  private readonly acceptors: Acceptors;
  private readonly isProxy: (address: string) => boolean;
  private readonly injector: ConnectionInjector;
  private readonly proxyInjector: ConnectionInjector;
  /** Calls that addresses may cancel. */
  private readonly cancellations: TokenBuckets;
  private readonly open = new Map<Socket, Connection>();
  /** Connections of another listener, also those whose TLS handshake is not complete. */
  private readonly accepted = new Set<Socket>();
  /** The same, keyed by the peer's `address:port`, which is how a call identifies its connection. */
  private readonly byPeer = new Map<string, Connection>();

  constructor(options: ServerOptions = {}, limits: Partial<GrpcLimits> = {}, parts: GrpcPortParts = {}) {
    const { listen, isProxy = () => false, random = Math.random, clock = systemClock } = parts;
    this.random = random;
    this.clock = clock;
    this.isProxy = isProxy;
    this.limits = { ...defaultGrpcLimits, ...limits };
    const { streams, proxyStreams, cancellations, proxyCancellations } = this.limits;
    const { burst, perSecond } = cancellations;
    this.cancellations = new TokenBuckets(clock, { burst: 5 * burst, perSecond });
    this.server = new Server({
      'grpc.max_connection_idle_ms': this.limits.idleTimeout,
      'grpc.max_connection_age_ms': Math.min(this.limits.connectionAge, maxAge),
      'grpc.keepalive_time_ms': this.limits.keepaliveTime,
      'grpc.keepalive_timeout_ms': this.limits.keepaliveTimeout,
      ...options,
      // A status passes through the interceptors before the one that sends it, so those also see what the port rejects.
      interceptors: [...(options.interceptors ?? []), this.interceptor()],
    });
    this.injector = this.injectorFor(streams, cancellations, (session) => {
      this.countCancellations(session);
      limitParts(session, false);
    });
    this.proxyInjector = this.injectorFor(proxyStreams, proxyCancellations, (session) => limitParts(session, true));
    const accept = (socket: Socket): void => this.add(socket);
    this.listener = listen?.(this.limits, accept) ?? createServer({ noDelay: true }, accept);
    if (listen) this.listener.on('connection', (socket: Socket) => this.keep(socket));
    if (!listen) limitConnections(this.listener, this.limits.connections);
    this.acceptors = new Acceptors({ noDelay: true }, (socket) => this.listener.emit('connection', socket));
  }

  /** Adds a service whose methods are gRPC handlers. */
  addService(definition: ServiceDefinition, implementation: UntypedServiceImplementation): void {
    this.server.addService(definition, implementation);
  }

  /** Starts listening and returns the port, which the system chooses if 0 is given. Rejects if it is in use. */
  listen(host: string, port: number): Promise<number> {
    return this.acceptors.listen(port, host);
  }

  /** Stops accepting connections and calls; resolves when running calls are finished or the time is up. */
  async closeWithin(milliseconds: number): Promise<void> {
    const closed = this.acceptors.close();
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

  /** Returns what hands over connections that may have so many calls at a time, and cancel so many. */
  private injectorFor(
    maxConcurrentStreams: number,
    { burst: streamResetBurst, perSecond: streamResetRate }: Cancellations,
    opened: (session: ServerHttp2Session) => void,
  ): ConnectionInjector {
    // grpc-js has no options for one of them, but makes a server of HTTP/2 for each injector, from these options.
    const internals = this.server as unknown as {
      readonly commonServerOptions: object;
      readonly http2Servers: ReadonlyMap<Http2Server, unknown>;
    };
    const settings = { maxConcurrentStreams, maxHeaderListSize: this.limits.metadataBytes };
    Object.assign(internals.commonServerOptions, { streamResetBurst, streamResetRate, settings });
    const injector = this.server.createConnectionInjector(ServerCredentials.createInsecure());
    [...internals.http2Servers.keys()].at(-1)!.on('session', opened);
    return injector;
  }

  /** Counts the calls of a connection that its client cancels early. */
  private countCancellations(session: ServerHttp2Session): void {
    const owner = addressBlock(session.socket.remoteAddress ?? '');
    session.on('stream', (stream) => {
      const begun = this.clock.now();
      const cancelled = (): void => {
        // Calls that are lost with their connection end in the same way.
        if (session.destroyed || session.socket.destroyed) return;
        if (this.clock.now() - begun < earlyMilliseconds) this.cancellations.charge(owner);
      };
      if (stream.aborted) cancelled();
      else stream.once('aborted', cancelled);
    });
  }

  private keep(socket: Socket): void {
    this.accepted.add(socket);
    socket.setNoDelay(true);
    socket.once('close', () => this.accepted.delete(socket));
  }

  private add(socket: Socket): void {
    const address = socket.remoteAddress ?? '';
    const isProxy = this.isProxy(address);
    if (!isProxy && this.cancellations.wait(addressBlock(address)) > 0) return void socket.destroy();
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
    (isProxy ? this.proxyInjector : this.injector).injectConnection(socket);
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

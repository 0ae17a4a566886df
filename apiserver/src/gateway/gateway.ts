// Assembles the gateway: the public ports, built from the contract and the registered services.
import type { TLSSocket } from 'node:tls';
import type { DescService } from '@bufbuild/protobuf';
import { Health as HealthService } from '@kellet/proto/es/grpc/health/v1/health_pb';
import type { Platform } from '../config/module.ts';
import { sleep } from '../platform/clock.ts';
import { addHealth } from '../platform/grpc/grpc-health.ts';
import type { GrpcPort } from '../platform/grpc/grpc-port.ts';
import type { Caller, Invoker } from '../platform/rpc.ts';
import type { TlsFiles } from '../platform/tls/tls-files.ts';
import { createTlsListener } from '../platform/tls/tls-listener.ts';
import { Admission, type IsGatewayOf, type IsVisible } from './admission/admission-steps.ts';
import { Authenticator } from './admission/authenticate.ts';
import { type AddressOf, clientAddresses, listOf, trustedProxies } from './admission/client-address.ts';
import { connectionProofs, type ProofOf } from './admission/connection-proof.ts';
import { createGrpcPort } from './grpc/grpc.ts';
import { addReflection } from './grpc/grpc-reflection.ts';
import { Callbacks } from './http/callbacks.ts';
import { coldRoutes } from './http/gateway-routes.ts';
import type { Health } from './http/health.ts';
import type { HttpServer } from './http/http-server.ts';
import { openapiRoute } from './http/openapi-route.ts';
import { createRestServer } from './http/rest-server.ts';
import { BodyMemory } from './memory/body-memory.ts';
import { DecodingTurns } from './memory/decoding-turns.ts';
import { LargeRequests } from './memory/large-requests.ts';
import { AccessLog, type LineSink } from './observability/access-log.ts';
import { AuditLog } from './observability/audit-log.ts';
import { CallMetrics } from './observability/call-metrics.ts';
import { withKubernetesLog } from './observability/kubernetes-log.ts';
import { createPageServer } from './pages/page-server.ts';
import { PostgresRateCounter } from './rate-limit/postgres-rate-counter.ts';
import { RateLimiter } from './rate-limit/rate-limit.ts';
import { RedisRateCounter } from './rate-limit/redis-rate-counter.ts';
import { publicServices } from './services.ts';
import { RouteTable } from './transcoding/routes.ts';
import type { RequestReaders } from './transcoding/transcode.ts';

/** The parts of the platform that the gateway uses. */
export type GatewayPlatform = Pick<
  Platform,
  'config' | 'clock' | 'logger' | 'metrics' | 'database' | 'broker' | 'audit'
>;

/** Options of the gateway besides the platform. */
export interface GatewayOptions {
  readonly invoker: Invoker;
  readonly health: Health;
  /** Destination of the access log; defaults to standard output. */
  readonly accessLog?: LineSink;
  /**
   * Reports whether one device is another's connected gateway. By default device keys may name only their own device.
   */
  readonly isGatewayOf?: IsGatewayOf;
  /** Reports whether a limited caller reaches a device. By default such a caller reaches none. */
  readonly isVisible?: IsVisible;
  /** Reports whether a service, by its full name, can be called, for grpc.health.v1; defaults to always. */
  readonly isServing?: (typeName: string) => Promise<boolean>;
  /** Dependencies that only the services of one target need, as isServing reports. */
  readonly servedElsewhere?: ReadonlySet<string>;
  /** The services to expose; defaults to the public ones. */
  readonly services?: readonly DescService[];
  /** Readers of the bodies of methods that are worth it. */
  readonly readers?: RequestReaders | undefined;
  /** The certificate of the ports that are set to TLS. */
  readonly tls?: TlsFiles | undefined;
}

/** What other entrances of the gateway process need to admit callers and to make their calls (mqtt/). */
export interface Entrance {
  readonly routes: RouteTable;
  /** Readers of the bodies of methods that are worth it. */
  readonly readers: RequestReaders;
  readonly admission: Admission;
  readonly authenticator: Authenticator;
  /** Makes calls, and records them in the audit log. */
  readonly invoker: Invoker;
  readonly metrics: CallMetrics;
  readonly accessLog: AccessLog;
  readonly memory: BodyMemory;
  readonly large: LargeRequests;
  readonly turns: DecodingTurns;
  readonly addressOf: AddressOf;
  readonly proofOf: ProofOf;
  readonly isGatewayOf: IsGatewayOf;
}

/** The public ports and everything behind them. */
export class Gateway {
  /** Used for `/ws`: the live feed handles the server's `upgrade` event and uses the authenticator. */
  readonly httpServer: HttpServer;
  readonly authenticator: Authenticator;
  readonly routes: RouteTable;
  /** Resolves the client address of a request, through trusted proxies. */
  readonly addressOf: AddressOf;
  readonly accessLog: AccessLog;
  readonly entrance: Entrance;
  private readonly admission: Admission;
  private readonly grpcPort: GrpcPort;
  private readonly pageServer: HttpServer;
  private restPort = 0;
  private readonly redisRateCounter: RedisRateCounter | undefined;
  private readonly callbacks: Callbacks;
  private readonly platform: GatewayPlatform;
  private readonly health: Health;
  private readonly stopping = new AbortController();

  constructor(platform: GatewayPlatform, options: GatewayOptions) {
    const { config, clock, metrics, database, broker, audit } = platform;
    const logger = platform.logger.child({ component: 'gateway' });
    this.platform = platform;
    this.health = options.health;
    const services = options.services ?? publicServices;
    this.routes = new RouteTable(services);
    const trusted = listOf(config.trustedProxies);
    this.addressOf = clientAddresses(trusted, (peer) =>
      logger.warn(
        { peer },
        'a peer that is not a trusted proxy sends X-Forwarded-For or Forwarded: if it is a proxy, all its clients share one address and its limits until KELLET_TRUSTED_PROXIES names it',
      ),
    );
    this.accessLog = new AccessLog(config.accessLog, options.accessLog);
    this.authenticator = new Authenticator(options.invoker, clock);
    this.callbacks = new Callbacks(database, broker, logger, metrics, {
      secret: config.callbackHmacSecret,
      skipValidation: config.callbackSkipValidation,
    });
    if (config.redisUrl !== '') this.redisRateCounter = new RedisRateCounter(config.redisUrl, logger);
    const counter = this.redisRateCounter ?? new PostgresRateCounter(database, logger);
    const limiter = new RateLimiter(counter, clock, logger, metrics);
    const { isGatewayOf = () => Promise.resolve(false), isVisible = () => Promise.resolve(false) } = options;
    const auditLog = new AuditLog(audit, this.routes);
    this.admission = new Admission(this.authenticator, limiter, { isGatewayOf, isVisible }, clock, auditLog);
    const memory = new BodyMemory();
    const shared = {
      memory,
      large: new LargeRequests(memory),
      turns: new DecodingTurns(),
      admission: this.admission,
      authenticator: this.authenticator,
      invoker: withKubernetesLog(auditLog.wrap(options.invoker), logger),
      metrics: new CallMetrics(metrics),
      logger,
      stopping: this.stopping.signal,
      addressOf: this.addressOf,
      proofOf: connectionProofs(config.clientCertificateHeader, trusted),
      accessLog: this.accessLog,
    };
    const { readers = new Map() } = options;
    this.entrance = { ...shared, routes: this.routes, readers, isGatewayOf };
    this.httpServer = createRestServer({
      ...shared,
      routes: this.routes,
      dashboardOrigin: config.dashboardOrigin,
      readers,
      limits: { connections: config.maximumConnections },
      cold: coldRoutes({
        health: options.health,
        callbacks: this.callbacks,
        document: openapiRoute(shared.admission, this.addressOf),
        memory,
        addressOf: this.addressOf,
        logger,
      }),
    });
    const { tls } = options;
    const connections = config.maximumConnections;
    if (config.restTls && tls) {
      const accept = (socket: TLSSocket): void => void this.httpServer.emit('connection', socket);
      this.httpServer.behind(createTlsListener(tls, { connections, handshakeTimeout: 15_000 }, logger, accept));
    }
    this.grpcPort = createGrpcPort({
      ...{ ...shared, services, limits: { connections } },
      isProxy: trustedProxies(trusted),
      tls: config.grpcTls ? tls : undefined,
    });
    const { health, isServing = () => Promise.resolve(true), servedElsewhere } = options;
    addHealth(this.grpcPort, {
      services: services.map((service) => service.typeName),
      isServing: async (service) =>
        (await health.readiness(service === '' ? undefined : servedElsewhere)).isReady && (await isServing(service)),
      stopping: this.stopping.signal,
    });
    addReflection(this.grpcPort, [...services, HealthService], this.stopping.signal);
    this.pageServer = createPageServer({
      publicUrl: config.publicUrl,
      dashboardOrigin: config.dashboardOrigin,
      scheme: config.restTls ? 'https' : 'http',
      restPort: () => this.restPort,
    });
  }

  /**
   * Returns the caller who opens a socket, counted as one request of the tenant. Throws as Admission.admitSocket does.
   */
  admitSocket(credential: string, address: string): Promise<Caller> {
    return this.admission.admitSocket(credential, address);
  }

  /** Listens on the public ports and returns their numbers, which differ from the configured ones when those are 0. */
  async start(): Promise<{ restPort: number; grpcPort: number; dashboardPort: number }> {
    const { listenHost, restPort, grpcPort, dashboardPort } = this.platform.config;
    this.authenticator.listen(this.platform.database);
    this.callbacks.start();
    this.restPort = await this.httpServer.start(restPort, listenHost);
    return {
      restPort: this.restPort,
      dashboardPort: await this.pageServer.start(dashboardPort, listenHost),
      grpcPort: await this.grpcPort.listen(listenHost, grpcPort),
    };
  }

  /** Reports not ready while still serving, for long enough that load balancers notice. */
  async drain(): Promise<void> {
    this.health.drain();
    this.httpServer.drain();
    await sleep(this.platform.config.drainDelaySeconds * 1000);
  }

  /** Stops accepting requests, waits for running ones, and aborts those that do not finish in time. */
  async stop(): Promise<void> {
    this.health.drain();
    this.stopping.abort();
    const drainMilliseconds = this.platform.config.drainSeconds * 1000;
    await Promise.all([
      this.httpServer.closeWithin(drainMilliseconds),
      this.pageServer.closeWithin(1000),
      this.grpcPort.closeWithin(drainMilliseconds),
    ]);
    await this.callbacks.stop();
    this.accessLog.close();
    this.redisRateCounter?.close();
  }
}

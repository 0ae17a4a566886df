#!/usr/bin/env node
// kellet-apiserver: configuration → parts → start in order → drain in the opposite order. Read this first.
import { createPrivateKey, hkdfSync, randomBytes } from 'node:crypto';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { PreSharedKeys } from './auth/device-credentials/pre-shared-keys.ts';
import { chainChecks } from './chain-anchor/readiness.ts';
import { commands, commandSummary, runCommand } from './commands.ts';
import { type Config, configHelp, readConfig, unknownSettings } from './config/config.ts';
import type { Platform, ServiceModule } from './config/module.ts';
import { createServices } from './create-services.ts';
import { AlarmFeed } from './dashboard-bff/alarm-feed.ts';
import { EventFeed } from './dashboard-bff/event-feed.ts';
import { RolloutFeed } from './dashboard-bff/rollout-feed.ts';
import { maxMembers } from './dashboard-bff/session.ts';
import { attachWebSocket } from './dashboard-bff/web-socket.ts';
import { followRollouts, shownRollouts } from './device-link/ota/rollouts/shown-rollouts.ts';
import type { DeviceDirectory } from './device-registry/devices/directory.ts';
import { visibleDevices } from './device-registry/devices/visible-devices.ts';
import { followGroups, groupMembers } from './device-registry/groups/group-store.ts';
import { Diagnostics } from './diagnostics/diagnostics.ts';
import { addressOfRequest } from './gateway/admission/client-address.ts';
import { Gateway } from './gateway/gateway.ts';
import { type Check, Health } from './gateway/http/health.ts';
import { controlTlsOf } from './internal/control-tls.ts';
import { TargetInvoker } from './internal/invoker.ts';
import { InternalServer } from './internal/server.ts';
import { MqttListeners } from './mqtt/listeners.ts';
import { AuditTrail } from './platform/audit/audit-trail.ts';
import { sleep, systemClock } from './platform/clock.ts';
import { isConnectionError } from './platform/database/connection/database-errors.ts';
import { SlowStatements } from './platform/database/connection/slow-statements.ts';
import { connectionsBesidePool, Database } from './platform/database/database.ts';
import { registerTransactionIdGauge } from './platform/database/freezing.ts';
import { migrate } from './platform/database/migrate.ts';
import { Broker } from './platform/events/broker.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import { addHealth } from './platform/grpc/grpc-health.ts';
import { nearestName } from './platform/nearest-name.ts';
import { createLogger, type Logger } from './platform/observability/logger.ts';
import { createMetrics } from './platform/observability/metrics.ts';
import { startTracing } from './platform/observability/tracing.ts';
import { Paging } from './platform/requests/paging.ts';
import type { ServiceRegistry } from './platform/rpc.ts';
import { TlsFiles } from './platform/tls/tls-files.ts';
import { ProcessServer } from './process-server.ts';
import { scanRequest } from './telemetry/kernel/scanned-request.ts';
import { LiveHub } from './telemetry/live/live.ts';
import { LiveRelay } from './telemetry/live/live-relay.ts';

const usage = `kellet-apiserver: the data plane of Kellet

usage: kellet-apiserver [--target=all|gateway,auth,…] [flags]
${commandSummary()}

kellet-apiserver COMMAND --help describes a command. Commands take the same settings, except flags other than --config.

Every setting is a flag, an environment variable or a key of the configuration file, in this order of precedence: --rest-port,
KELLET_REST_PORT and restPort are the same. A secret cannot be a flag; it can be read from a file named by the variable with _FILE.
KUBECONFIG names the Kubernetes API; inside a cluster it is found by itself. OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and
the other variables of OpenTelemetry ask for spans.

${configHelp()}
`;

/** Derives the key of page tokens: the same in every replica, and used for nothing else. */
function pagingKey(config: Config): Buffer {
  // A gateway alone returns no pages of its own.
  if (config.jwtPrivateKey === '') return randomBytes(32);
  const secret = createPrivateKey(config.jwtPrivateKey).export({ type: 'pkcs8', format: 'der' });
  return Buffer.from(hkdfSync('sha256', secret, '', 'kellet page tokens', 32));
}

/** Migrates as soon as the database is reachable, so that both may be started at the same time. */
async function migrateWhenReachable(database: Database, logger: Logger, signal: AbortSignal): Promise<void> {
  for (let delay = 200; !signal.aborted; delay = Math.min(delay * 2, 5000)) {
    try {
      return await migrate(database, logger);
    } catch (error) {
      if (!isConnectionError(error)) throw error;
      logger.warn({ err: error }, 'the database is not reachable, trying again');
      await sleep(delay, signal);
    }
  }
}

/** Dependencies that calls do not need. */
const beyondCalls: ReadonlySet<string> = new Set(['nats', 'processor', 'headers']);

/** Returns the readiness checks of a process with these targets; optional dependencies are only shown by metrics. */
function checksOf(
  config: Config,
  database: Database,
  broker: Broker,
  modules: readonly ServiceModule[],
): Record<string, Check> {
  const { targets } = config;
  const postgres = async () => {
    await database.ping();
    for (const module of modules) module.check?.();
  };
  const checks: Record<string, Check> = { postgres };
  if (targets.has('gateway') || targets.has('chain-anchor')) checks['nats'] = () => broker.ping();
  // An outage of the chain must not make the other services of the process unready.
  if (targets.has('chain-anchor') && targets.size === 1) Object.assign(checks, chainChecks(config));
  return checks;
}

async function run(config: Config): Promise<void> {
  const logger = createLogger(config.logLevel, { process: 'kellet-apiserver' });
  for (const problem of unknownSettings(process.env)) logger.warn(problem);
  const stopping = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stopping.abort());
  // A defect must not leave a half-working process behind: the supervisor starts a new one.
  const crash = (error: unknown) => {
    logger.fatal({ err: error }, 'unexpected error');
    process.exit(1);
  };
  process.on('uncaughtException', crash);
  process.on('unhandledRejection', crash);

  const endTracing = await startTracing(process.env, logger);
  const metrics = createMetrics();
  const slowStatements = new SlowStatements(config.slowStatementMilliseconds, logger, metrics);
  const database = new Database(config.databaseUrl, logger, {
    directUrl: config.databaseDirectUrl,
    maximumConnections: config.databaseConnections - connectionsBesidePool,
    slowStatements,
    metrics,
  });
  registerTransactionIdGauge({ database, metrics, logger });
  const broker = new Broker(config.natsUrl, logger, config.natsReplicas, config.natsStreamBytes);
  const { targets } = config;
  const isGateway = targets.has('gateway');
  const modules: ServiceModule[] = [];
  const health = new Health(checksOf(config, database, broker, modules));
  const audit = new AuditTrail({ database, clock: systemClock, logger, metrics });
  const diagnostics = config.controlSecret === '' ? undefined : new Diagnostics(config.controlSecret, logger, audit);
  const processServer = new ProcessServer(health, metrics, logger, diagnostics);
  await processServer.listen(config.listenHost, config.metricsPort);
  await migrateWhenReachable(database, logger, stopping.signal);

  const outbox = new OutboxRelay(database, broker, logger, metrics);
  const paging = new Paging(pagingKey(config));
  const platform: Platform = { config, clock: systemClock, logger, metrics, database, broker, outbox, paging, audit };
  const live = new LiveHub();
  const liveRelay = new LiveRelay(live, broker, systemClock, metrics);
  const internal = new InternalServer(config.controlSecret, logger, controlTlsOf(config));
  const created = createServices(platform, targets, internal, live);
  const { registry, directory } = created;
  modules.push(...created.modules);
  const services = new TargetInvoker(registry, config.addresses, config.controlSecret, controlTlsOf(config));
  for (const target of services.remoteTargets) health.add(target, () => services.checkTarget(target));
  internal.addServicesOf(registry);
  addHealth(internal, {
    services: registry.services().map((service) => service.typeName),
    // A call needs the database; the other dependencies concern the process as a whole.
    isServing: async (service) => (await health.readiness(service === '' ? undefined : beyondCalls)).isReady,
    stopping: internal.stopping,
  });
  if (targets.has('gateway') || targets.has('telemetry')) liveRelay.start();
  for (const module of modules) if (!stopping.signal.aborted) await module.start?.();
  // Nobody calls a gateway.
  if (registry.services().length > 0) await internal.listen(config.listenHost, config.controlPort);
  const entrance = isGateway ? await openGateway(platform, { services, registry, directory, live, health }) : undefined;
  processServer.started();
  logger.info({ ...entrance?.ports, targets: [...targets] }, 'serving');

  if (!stopping.signal.aborted) {
    await new Promise((resolve) => stopping.signal.addEventListener('abort', resolve, { once: true }));
  }
  logger.info('draining');
  health.drain();
  await entrance?.close();
  await internal.close();
  services.close();
  liveRelay.stop();
  for (const module of modules.toReversed()) await module.stop?.();
  await audit.close();
  await outbox.close();
  await broker.close();
  await database.close();
  await processServer.close();
  await endTracing();
  logger.info('stopped');
}

/** Opens the public ports with the live feed. */
async function openGateway(
  platform: Platform,
  parts: {
    readonly services: TargetInvoker;
    readonly registry: ServiceRegistry;
    readonly directory: DeviceDirectory;
    readonly live: LiveHub;
    readonly health: Health;
  },
) {
  const { config, database, logger, metrics } = platform;
  const { services, directory, live, health } = parts;
  const visible = visibleDevices(database, directory);
  const { tlsCertFile, tlsKeyFile } = config;
  const tls = tlsCertFile === '' ? undefined : new TlsFiles(tlsCertFile, tlsKeyFile, logger);
  const gateway = new Gateway(platform, {
    // In one process a call is a function call.
    invoker: services.remoteTargets.length === 0 ? parts.registry : services,
    // Another process gets the points as a message.
    readers: new Map(services.remoteTargets.length === 0 ? [[TelemetryService.method.ingest, scanRequest]] : []),
    health,
    tls,
    isServing: (typeName) => services.isServing(typeName),
    // Without auth no caller can be authenticated; an outage of another target only fails its own calls.
    servedElsewhere: new Set(services.remoteTargets.filter((target) => target !== 'auth')),
    isGatewayOf: async (tenantId, gatewayDeviceId, deviceId) =>
      (await directory.lookup(tenantId, [deviceId])).get(deviceId)?.gatewayDeviceId === gatewayDeviceId,
    isVisible: async (tenantId, deviceId, visibility) =>
      (await visible(tenantId, [deviceId], visibility)).has(deviceId),
  });
  const liveFeed = attachWebSocket(gateway.httpServer, {
    devices: directory,
    visibleDevices: visible,
    live,
    alarms: new AlarmFeed(platform.broker, { visibleDevices: visible, logger }),
    events: new EventFeed(platform.broker, logger),
    rollouts: new RolloutFeed({
      read: (tenantId, rolloutIds) => shownRollouts(platform, tenantId, rolloutIds),
      follow: (changed) => followRollouts(database, changed),
      logger,
    }),
    groupMembers: (tenantId, groupId) => groupMembers(database, tenantId, groupId, maxMembers + 1),
    followGroups: (changed) => followGroups(database, changed),
    followDevices: (changed) => directory.follow(changed),
    authenticate: (token, address) => gateway.admitSocket(token, address),
    isKnown: (token) => gateway.authenticator.isKnown(token),
    watch: (call) => gateway.authenticator.watch(call),
    addressOf: (request) => addressOfRequest(gateway.addressOf, request),
    accessLog: gateway.accessLog,
    audit: platform.audit,
    dashboardOrigin: config.dashboardOrigin,
    logger,
    metrics,
  });
  const mqtt = new MqttListeners({
    ...{
      entrance: gateway.entrance,
      database,
      clock: platform.clock,
      logger,
      metrics,
      httpServer: gateway.httpServer,
      tls,
    },
    preSharedKeys: new PreSharedKeys(config.controlSecret, config.previousControlSecret),
    settings: {
      listenHost: config.listenHost,
      port: config.mqttPort,
      tlsPort: config.mqttTlsPort,
      rate: config.mqttRate,
      maximumConnections: config.maximumConnections,
      drainMilliseconds: config.drainSeconds * 1000,
    },
  });
  tls?.start();
  return {
    ports: { ...(await gateway.start()), ...(await mqtt.start()) },
    close: async () => {
      await gateway.drain();
      liveFeed.close();
      await mqtt.close();
      await gateway.stop();
      tls?.stop();
    },
  };
}

/** Returns the exit code. */
async function main(): Promise<number> {
  const [first, ...rest] = process.argv.slice(2);
  if (first === '--help' || first === '-h' || first === 'help') {
    console.log(usage);
    return 0;
  }
  if (first !== undefined && Object.hasOwn(commands, first))
    return runCommand(first, rest, (line) => console.log(line));
  if (first !== undefined && !first.startsWith('-')) {
    const nearest = nearestName(first, Object.keys(commands));
    process.stderr.write(`kellet-apiserver: unknown command ${first}; did you mean ${nearest}?\n`);
    return 2;
  }
  await run(readConfig(process.env, first === undefined ? [] : [first, ...rest]));
  return 0;
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`kellet-apiserver: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

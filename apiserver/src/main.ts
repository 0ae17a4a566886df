#!/usr/bin/env node
// kellet-apiserver: configuration → parts → start in order → drain in the opposite order. Read this first.
import { createPrivateKey, hkdfSync, randomBytes } from 'node:crypto';
import { chainChecks } from './chain-anchor/readiness.ts';
import { runWalletCommand } from './chain-anchor/wallet-command.ts';
import { configHelp, readConfig, s3SettingsOf, type Config } from './config/config.ts';
import { createServices } from './create-services.ts';
import { AlarmFeed } from './dashboard-bff/alarm-feed.ts';
import { EventFeed } from './dashboard-bff/event-feed.ts';
import { RolloutFeed } from './dashboard-bff/rollout-feed.ts';
import { attachWebSocket } from './dashboard-bff/web-socket.ts';
import { ArtifactStores } from './device-link/ota/packages/artifact-stores.ts';
import { runArtifactsCommand } from './device-link/ota/packages/artifacts-command.ts';
import { followRollouts, shownRollouts } from './device-link/ota/rollouts/shown-rollouts.ts';
import type { DeviceDirectory } from './device-registry/directory.ts';
import { runKeysCommand } from './auth/credentials/keys-command.ts';
import { followGroups, groupMembers } from './device-registry/group-store.ts';
import { visibleDevices } from './device-registry/visible-devices.ts';
import { Gateway } from './gateway/gateway.ts';
import { Health, type Check } from './gateway/http/health.ts';
import { addressOfRequest } from './gateway/admission/client-address.ts';
import { TargetInvoker } from './internal/invoker.ts';
import { InternalServer } from './internal/server.ts';
import { Broker } from './platform/events/broker.ts';
import { sleep, systemClock } from './platform/clock.ts';
import { Database } from './platform/database/database.ts';
import { isConnectionError } from './platform/database/database-errors.ts';
import { addHealth } from './platform/grpc/grpc-health.ts';
import { createLogger, type Logger } from './platform/observability/logger.ts';
import { createMetrics } from './platform/observability/metrics.ts';
import { migrate } from './platform/database/migrate.ts';
import type { Platform, ServiceModule } from './config/module.ts';
import { MqttListeners } from './mqtt/listeners.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import { runEventsCommand } from './platform/events/outbox-command.ts';
import { Paging } from './platform/paging.ts';
import { SlowStatements } from './platform/database/slow-statements.ts';
import { startTracing } from './platform/observability/tracing.ts';
import type { ServiceRegistry } from './platform/rpc.ts';
import { ProcessServer } from './process-server.ts';
import { LiveRelay } from './telemetry/live/live-relay.ts';
import { LiveHub } from './telemetry/live/live.ts';
import { runColdCommand } from './telemetry/cold/cold-command.ts';
import { runPublishPointsCommand } from './telemetry/live/publish-points-command.ts';

const usage = `kellet-apiserver: the data plane of Kellet

usage: kellet-apiserver [--target=all|gateway,auth,…] [flags]
       kellet-apiserver wallet address|balance|split|import
       kellet-apiserver keys list | rotate
       kellet-apiserver publish-points list | --tenant TENANT_ID on|off|default
       kellet-apiserver artifacts status | move [--to postgres|file:///FOLDER|s3://BUCKET/PREFIX]
       kellet-apiserver cold run [--all]
       kellet-apiserver events list | show|resend|drop EVENT_ID… | resend|drop --all

Every setting is a flag, or an environment variable; a secret is a variable or a file named by the variable with _FILE.
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
  const database = new Database(config.databaseUrl, logger, { slowStatements });
  const broker = new Broker(config.natsUrl, logger);
  const { targets } = config;
  const isGateway = targets.has('gateway');
  const modules: ServiceModule[] = [];
  const health = new Health(checksOf(config, database, broker, modules));
  const processServer = new ProcessServer(health, metrics, logger);
  await processServer.listen(config.listenHost, config.metricsPort);
  await migrateWhenReachable(database, logger, stopping.signal);

  const outbox = new OutboxRelay(database, broker, logger, metrics);
  const paging = new Paging(pagingKey(config));
  const platform: Platform = { config, clock: systemClock, logger, metrics, database, broker, outbox, paging };
  const live = new LiveHub();
  const liveRelay = new LiveRelay(live, broker, systemClock, metrics);
  const internal = new InternalServer(config.controlSecret, logger);
  const created = createServices(platform, targets, internal, live);
  const { registry, directory } = created;
  modules.push(...created.modules);
  const services = new TargetInvoker(registry, config.addresses, config.controlSecret);
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
  if (modules.length > 0) await internal.listen(config.listenHost, config.controlPort);
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
  const gateway = new Gateway(platform, {
    // In one process a call is a function call.
    invoker: services.remoteTargets.length === 0 ? parts.registry : services,
    health,
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
    alarms: new AlarmFeed(platform.broker),
    events: new EventFeed(platform.broker, logger),
    rollouts: new RolloutFeed({
      read: (tenantId, rolloutIds) => shownRollouts(platform, tenantId, rolloutIds),
      follow: (changed) => followRollouts(database, changed),
      logger,
    }),
    groupMembers: (tenantId, groupId) => groupMembers(database, tenantId, groupId),
    followGroups: (changed) => followGroups(database, changed),
    followDevices: (changed) => directory.follow(changed),
    authenticate: (token, address) => gateway.admitSocket(token, address),
    isKnown: (token) => gateway.authenticator.isKnown(token),
    watch: (call) => gateway.authenticator.watch(call),
    addressOf: (request) => addressOfRequest(gateway.addressOf, request),
    accessLog: gateway.accessLog,
    dashboardOrigin: config.dashboardOrigin,
    logger,
    metrics,
  });
  const mqtt = new MqttListeners({
    ...{ entrance: gateway.entrance, database, clock: platform.clock, logger, metrics, httpServer: gateway.httpServer },
    settings: {
      listenHost: config.listenHost,
      port: config.mqttPort,
      tlsPort: config.mqttTlsPort,
      certFile: config.tlsCertFile,
      keyFile: config.tlsKeyFile,
      rate: config.mqttRate,
      maximumConnections: config.maximumConnections,
      drainMilliseconds: config.drainSeconds * 1000,
    },
  });
  return {
    ports: { ...(await gateway.start()), ...(await mqtt.start()) },
    close: async () => {
      await gateway.drain();
      liveFeed.close();
      await mqtt.close();
      await gateway.stop();
    },
  };
}

type Write = (line: string) => void;

/** Commands that work on the database while the server runs, with the same settings. Each returns the exit code. */
const commands: Record<
  string,
  (args: readonly string[], config: Config, database: Database, logger: Logger, write: Write) => Promise<number>
> = {
  wallet: (args, config, database, logger, write) => runWalletCommand(args, { config, database, logger, write }),
  keys: (args, { jwtPrivateKey: configuredKey }, database, logger, write) =>
    runKeysCommand(args, { database, logger, configuredKey, write }),
  'publish-points': (args, { publishPoints }, database, _logger, write) =>
    runPublishPointsCommand(args, { database, setting: publishPoints, write }),
  events: (args, _config, database, _logger, write) => runEventsCommand(args, { database, write }),
  cold: (args, config, database, logger, write) => runColdCommand(args, { config, database, logger, write }),
  artifacts: (args, config, database, logger, write) =>
    runArtifactsCommand(args, {
      ...{ database, logger, write },
      stores: new ArtifactStores(config.artifactStore, s3SettingsOf(config)),
    }),
};

async function runCommand(name: string, args: readonly string[]): Promise<number> {
  const config = readConfig(process.env, []);
  const logger = createLogger('warn', { process: `kellet-apiserver ${name}` });
  const database = new Database(config.databaseUrl, logger, { maximumConnections: 2 });
  try {
    await migrate(database, logger);
    return await commands[name]!(args, config, database, logger, (line) => console.log(line));
  } finally {
    await database.close();
  }
}

/** Returns the exit code. */
async function main(): Promise<number> {
  const [first, ...rest] = process.argv.slice(2);
  if (first === '--help' || first === '-h' || first === 'help') {
    console.log(usage);
    return 0;
  }
  if (first !== undefined && Object.hasOwn(commands, first)) return runCommand(first, rest);
  await run(readConfig(process.env, first === undefined ? [] : [first, ...rest]));
  return 0;
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`kellet-apiserver: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

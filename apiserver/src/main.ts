#!/usr/bin/env node
// kellet-apiserver: configuration → parts → start in order → drain in the opposite order. Read this first.
import { createPrivateKey, hkdfSync } from 'node:crypto';
import { createAuth } from './auth/service.ts';
import { createChainAnchor } from './chain-anchor/service.ts';
import { runWalletCommand } from './chain-anchor/wallet-command.ts';
import { configHelp, readConfig, type Config } from './config.ts';
import { createControl } from './control/service.ts';
import { attachWebSocket } from './dashboard-bff/web-socket.ts';
import { createOta } from './device-link/ota/service.ts';
import { countRolloutsOfProfile } from './device-link/ota/usage.ts';
import { createProfileReader } from './device-link/provisioning/profiles.ts';
import { createProvisioning } from './device-link/provisioning/service.ts';
import { createRpc } from './device-link/rpc/service.ts';
import { countDevicesOfProfile } from './device-registry/devices.ts';
import { groupMembers } from './device-registry/group-members.ts';
import { createDeviceRegistry } from './device-registry/service.ts';
import { Gateway } from './gateway/gateway.ts';
import { Health } from './gateway/health.ts';
import { Broker } from './platform/broker.ts';
import { sleep, systemClock } from './platform/clock.ts';
import { Database, isConnectionError, migrate } from './platform/database.ts';
import { KubernetesApi, loadKubeConfig } from './platform/kubernetes.ts';
import { createLogger, type Logger } from './platform/logger.ts';
import { createMetrics } from './platform/metrics.ts';
import type { Platform, ServiceModule } from './platform/module.ts';
import { OutboxRelay } from './platform/outbox.ts';
import { Paging } from './platform/paging.ts';
import { ServiceRegistry } from './platform/rpc.ts';
import { ProcessServer } from './process-server.ts';
import { createTelemetry } from './telemetry/service.ts';
import { createVerifier } from './verifier/service.ts';

const usage = `kellet-apiserver: the data plane of Kellet

usage: kellet-apiserver [--target=all] [flags]
       kellet-apiserver wallet address|balance|split|import

Every setting is a flag, or an environment variable; a secret is a variable or a file named by the variable with _FILE.
KUBECONFIG names the Kubernetes API; inside a cluster it is found by itself.

${configHelp()}
`;

/** Key of the page tokens: the same in every replica, and of no use for anything else. */
function pagingKey(config: Config): Buffer {
  const secret = createPrivateKey(config.jwtPrivateKey).export({ type: 'pkcs8', format: 'der' });
  return Buffer.from(hkdfSync('sha256', secret, '', 'kellet page tokens', 32));
}

/** Migrates as soon as the database answers; a start beside a database that starts must not fail. */
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

/** Every service of this process, in the order in which they start. */
function createServices(platform: Platform, logger: Logger) {
  const { database } = platform;
  const auth = createAuth(platform);
  const profiles = createProfileReader(database);
  const deviceRegistry = createDeviceRegistry(platform, profiles);
  const { directory, liveness } = deviceRegistry;
  const control = createControl(platform, new KubernetesApi(loadKubeConfig(process.env['KUBECONFIG']), logger));
  const provisioning = createProvisioning(platform, control, async (tx, tenantId, profileId) => ({
    devices: await countDevicesOfProfile(tx, tenantId, profileId),
    rollouts: await countRolloutsOfProfile(tx, tenantId, profileId),
  }));
  const ota = createOta(platform, profiles, control.writer);
  control.addApplier('tenant', auth.tenantApplier);
  control.addApplier('otaPackage', ota.packages);
  control.addApplier('otaRollout', ota.rolloutApplier);
  control.setRolloutDriver(ota.rolloutDriver);
  const rpc = createRpc(platform, profiles, (tenantId, deviceId, at) => liveness.seen(tenantId, deviceId, at, 'poll'));
  const telemetry = createTelemetry(platform, directory, liveness);
  const modules: ServiceModule[] = [
    auth,
    deviceRegistry,
    provisioning,
    ota,
    rpc,
    telemetry,
    createChainAnchor(platform),
    createVerifier(platform),
    control,
  ];
  return { modules, auth, directory, telemetry };
}

async function run(config: Config): Promise<void> {
  const logger = createLogger(config.logLevel, { process: 'kellet-apiserver' });
  const stopping = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, () => stopping.abort());
  // A defect must not leave a half-working process behind: whoever supervises us starts a whole one.
  const crash = (error: unknown) => {
    logger.fatal({ err: error }, 'unexpected error');
    process.exit(1);
  };
  process.on('uncaughtException', crash);
  process.on('unhandledRejection', crash);

  const metrics = createMetrics();
  const database = new Database(config.databaseUrl, logger);
  const broker = new Broker(config.natsUrl, logger);
  const health = new Health({ postgres: () => database.ping(), nats: () => broker.ping() });
  const processServer = new ProcessServer(health, metrics);
  await processServer.listen(config.listenHost, config.metricsPort);
  await migrateWhenReachable(database, logger, stopping.signal);

  const outbox = new OutboxRelay(database, broker, logger);
  const paging = new Paging(pagingKey(config));
  const platform: Platform = { config, clock: systemClock, logger, metrics, database, broker, outbox, paging };
  const { modules, directory, telemetry } = createServices(platform, logger);
  const registry = new ServiceRegistry();
  for (const module of modules) module.register(registry);
  for (const module of modules) if (!stopping.signal.aborted) await module.start?.();
  const gateway = new Gateway(platform, {
    invoker: registry,
    health,
    isGatewayOf: async (tenantId, gatewayDeviceId, deviceId) =>
      (await directory.lookup(tenantId, [deviceId])).get(deviceId)?.gatewayDeviceId === gatewayDeviceId,
  });
  const liveFeed = attachWebSocket(gateway.httpServer, {
    devices: directory,
    live: telemetry.live,
    groupMembers: (tenantId, groupId) => groupMembers(database, tenantId, groupId),
    authenticate: async (token, address) => (await gateway.authenticator.authenticate(token, address)).caller,
    watch: (token, caller, address, end) => gateway.authenticator.watch(token, caller, address, end),
    dashboardOrigin: config.dashboardOrigin,
    logger,
    metrics,
  });
  const ports = await gateway.start();
  processServer.started();
  logger.info({ ...ports, target: config.target }, 'serving');

  if (!stopping.signal.aborted) {
    await new Promise((resolve) => stopping.signal.addEventListener('abort', resolve, { once: true }));
  }
  logger.info('draining');
  liveFeed.close();
  await gateway.stop();
  for (const module of modules.toReversed()) await module.stop?.();
  await outbox.close();
  await broker.close();
  await database.close();
  processServer.close();
  logger.info('stopped');
}

/** `kellet-apiserver wallet …`: with the same settings as the server. Answers the exit code. */
async function wallet(config: Config, args: readonly string[]): Promise<number> {
  const logger = createLogger('warn', { process: 'kellet-apiserver wallet' });
  const database = new Database(config.databaseUrl, logger, { maximumConnections: 2 });
  try {
    await migrate(database, logger);
    return await runWalletCommand(args, { config, database, logger, write: (line) => console.log(line) });
  } finally {
    await database.close();
  }
}

/** Answers the exit code. */
async function main(): Promise<number> {
  const [first, ...rest] = process.argv.slice(2);
  if (first === '--help' || first === '-h' || first === 'help') {
    console.log(usage);
    return 0;
  }
  if (first === 'wallet') return wallet(readConfig(process.env, []), rest);
  await run(readConfig(process.env, first === undefined ? [] : [first, ...rest]));
  return 0;
}

try {
  process.exit(await main());
} catch (error) {
  process.stderr.write(`kellet-apiserver: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

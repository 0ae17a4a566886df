#!/usr/bin/env node
// Entry point of kellet-operator: configuration → caches → leadership → controllers → shutdown. Start reading here.
import { randomUUID } from 'node:crypto';
import { KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { type Config, readConfig } from './config.ts';
import { ControlClient } from './data-plane.ts';
import { Operator } from './operator.ts';
import { systemClock } from './runtime/clock.ts';
import { serveHealth } from './runtime/health-server.ts';
import { LeaderElection } from './runtime/leader-election.ts';
import { createLogger, type Logger } from './runtime/logger.ts';
import { countRequests, createMetrics } from './runtime/metrics.ts';

/** Time for running work to finish at shutdown, in milliseconds. */
const drainMilliseconds = 30_000;
const leaseName = 'kellet-operator';

const usage = `kellet-operator: applies Kellet's custom resources to the data plane

usage: kellet-operator

  KUBECONFIG                   kubeconfig of the Kubernetes API; not needed inside a cluster
  KELLET_CONTROL_ADDRESS       host:port of the data plane's control service (required)
  KELLET_CONTROL_SECRET        secret shared with the data plane, at least 32 characters, or KELLET_CONTROL_SECRET_FILE (required)
  KELLET_CONTROL_TLS_CERT_FILE certificate chain of the operator, PEM; read again when it changes
  KELLET_CONTROL_TLS_KEY_FILE  private key of that certificate, PEM
  KELLET_CONTROL_TLS_CA_FILE   authority that has signed the certificates of operator and data plane, PEM
  KELLET_LISTEN_HOST           listen address of /metrics, /healthz and /readyz (default 0.0.0.0)
  KELLET_METRICS_PORT          port of /metrics, /healthz and /readyz (default 9464)
  KELLET_LEADER_ELECTION       whether to use leader election (default true)
  KELLET_LEASE_NAMESPACE       the operator's namespace, for Lease and passwords (default: the pod's own, else kellet-system)
  KELLET_TENANT_ROLE           ClusterRole that the operator binds to itself in tenants' namespaces (default kellet-operator-tenant)
  KELLET_IDENTITY              holder identity in the Lease; must be unique among running processes
  KELLET_DRIFT_CHECK_SECONDS   interval between drift checks of the data plane, in seconds (default 60)
  KELLET_LOG_LEVEL             trace, debug, info, warn, error, fatal or silent (default info)
`;

/** Runs the operator until the signal aborts. Returns the exit code, which is nonzero if the lease was lost. */
async function run(config: Config, logger: Logger, signal: AbortSignal): Promise<number> {
  const metrics = createMetrics();
  const clock = systemClock;
  const client = new KubernetesClient({
    config: loadKubeConfig(config.kubeconfig),
    userAgent: 'kellet-operator',
    around: countRequests(metrics),
  });
  const dataPlane = new ControlClient({
    ...{ address: config.controlAddress, secret: config.controlSecret, tls: config.controlTls },
    ...{ clock, logger },
  });
  const { identity, controlSecret, driftCheckMilliseconds, tenantRole, leaseNamespace: ownNamespace } = config;
  const means = { client, dataPlane, logger, metrics };
  const operator = new Operator({
    ...means,
    identity,
    controlSecret,
    ownNamespace,
    tenantRole,
    driftCheckMilliseconds,
  });
  let leading = false;
  const health = await serveHealth({
    host: config.listenHost,
    port: config.metricsPort,
    registry: metrics.registry,
    checks: {
      kubernetes: () => operator.cluster.check(clock.monotonic()),
      // A standby has no connection to the data plane.
      dataplane: () => (leading ? dataPlane.check() : undefined),
    },
  });
  logger.info({ port: health.port, identity: config.identity }, 'serving health and metrics');

  const following = new AbortController();
  const follow = operator.follow(following.signal);
  const working = new AbortController();
  signal.addEventListener('abort', () => working.abort(), { once: true });
  if (signal.aborted) working.abort();
  const work = async (): Promise<void> => {
    leading = true;
    await operator.reconcile(working.signal);
  };
  const held = await (config.leaderElection
    ? lead(config, { client, logger, metrics }, working, work)
    : work().then(() => true));

  following.abort();
  await follow;
  dataPlane.close();
  await health.close();
  await client.close();
  logger.info('stopped');
  return held ? 0 : 1;
}

/**
 * Works while this process leads, and releases the lease when the work has ended. Returns false if the lease was lost.
 */
async function lead(
  config: Config,
  means: Pick<ConstructorParameters<typeof LeaderElection>[0], 'client' | 'logger' | 'metrics'>,
  working: AbortController,
  work: () => Promise<void>,
): Promise<boolean> {
  const { leaseNamespace: namespace, identity } = config;
  const election = new LeaderElection({ ...means, clock: systemClock, namespace, name: leaseName, identity });
  if (!(await election.acquire(working.signal))) return true;
  const done = new AbortController();
  const worked = work().finally(() => done.abort());
  const kept = await election.hold(done.signal);
  // Another process may lead from now on: start nothing more, and exit without waiting for running work.
  if (kept) await worked;
  else working.abort();
  return kept;
}

async function main(): Promise<void> {
  const [argument] = process.argv.slice(2);
  if (argument === '--help' || argument === '-h') {
    console.log(usage);
    return;
  }
  if (argument !== undefined) {
    console.error(`kellet-operator: unexpected argument ${argument}; kellet-operator --help shows the settings`);
    process.exitCode = 2;
    return;
  }
  let config: Config;
  try {
    config = readConfig(process.env, randomUUID().slice(0, 8));
  } catch (error) {
    console.error(`kellet-operator: ${(error as Error).message}`);
    process.exitCode = 2;
    return;
  }
  const logger = createLogger(config.logLevel, { service: 'kellet-operator' });
  const stop = new AbortController();
  const onSignal = (name: NodeJS.Signals): void => {
    logger.info({ signal: name }, 'stopping');
    stop.abort();
    setTimeout(() => {
      logger.error('running work did not finish in time');
      process.exit(1);
    }, drainMilliseconds).unref();
  };
  process.once('SIGTERM', onSignal);
  process.once('SIGINT', onSignal);
  process.on('unhandledRejection', (error) => {
    logger.fatal({ err: error }, 'unhandled rejection');
    process.exit(1);
  });
  try {
    process.exitCode = await run(config, logger, stop.signal);
  } catch (error) {
    logger.fatal({ err: error }, 'the operator failed');
    process.exitCode = 1;
  }
  // Open handles must not delay a successor.
  process.exit();
}

await main();

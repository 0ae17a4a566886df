// The local stack as a library: runs all of Kellet on this machine, for `make dev`, `make demo` and the e2e tests.
import { chmod, mkdir, rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { buildDashboard } from '@kellet/dashboard/build';
import { kubernetesFolder, startCluster } from './cluster/cluster.ts';
import { deleteKind } from './cluster/kind.ts';
import { openResources, systemNamespace } from './cluster/resources.ts';
import { serviceAccountKubeconfig, type ServiceName } from './cluster/service-accounts.ts';
import { type DevInfo, pidsByName, removeDevInfo, writeDevInfo } from './dev-info.ts';
import { defaultStateFolder, removeReachableFolder } from './paths.ts';
import { choosePorts, readPorts, writePorts } from './ports/choose-ports.ts';
import { findFreePorts, isPortFree } from './ports/free-ports.ts';
import { tryLock } from './processes/file-lock.ts';
import { endRecordedProcesses } from './processes/process-table.ts';
import { startOrStop, Stopping } from './processes/stopping.ts';
import { createSupervisor, type Supervisor } from './processes/supervisor.ts';
import { kubectlProgram, natsServerProgram } from './programs/binaries.ts';
import type { Report } from './programs/go-build.ts';
import { ed25519PrivateKey, openSecrets, randomHexKey } from './secrets.ts';
import { serveArtifacts } from './services/artifacts.ts';
import {
  type ApiserverOptions,
  dashboardOrigin,
  startApiserver,
  startOperator,
  startSplitApiserver,
  startTarget,
  usesDevchain,
} from './services/data-plane.ts';
import { startDevchain } from './services/devchain.ts';
import { startNats } from './services/nats.ts';
import { ensureServiceDatabase, startPostgres } from './services/postgres.ts';

/** Options of a stack. */
export interface StackOptions {
  /** State folder (default `.kellet` of the checkout). One stack can run per folder. */
  stateFolder?: string;
  /** Removes the state of earlier runs first. */
  fresh?: boolean;
  /** Settings (KELLET_…) on top of this process's environment. */
  environment?: Readonly<Record<string, string | undefined>>;
  /** Whether PostgreSQL writes to the disk what it acknowledges (default true); without it, killing it loses nothing either. */
  survivesPowerFailure?: boolean;
  /** One line of progress. */
  report?: Report;
  /** Aborts the start and stops what has been started. */
  signal?: AbortSignal;
}

/** Processes that can be killed, stopped and restarted; `pids()` returns those of this stack. */
export type ProcessName =
  | 'apiserver'
  | 'services'
  | 'telemetry'
  | 'operator'
  | 'devchain'
  | 'nats'
  | 'postgres'
  | 'etcd'
  | 'kube-apiserver'
  | 'kube-controller-manager';

/** Further processes of the data plane, which tests start. */
export type TargetName = `target-${string}`;

/** Addresses of a process of the data plane; base URLs have no trailing slash. */
export interface TargetPorts {
  rest: string;
  /** host:port, as all that follow. */
  grpc: string;
  control: string;
  /** Base URL of /metrics, /healthz and /readyz. */
  metrics: string;
  /** mqtt://host:port. */
  mqtt: string;
}

/** A running stack. */
export interface Stack {
  /** Content of dev.json; `pids` is always current. */
  readonly info: DevInfo;
  /** Path of dev.json. */
  readonly infoPath: string;
  /** Folder whose files are served under `info.artifacts`. */
  readonly artifactsFolder: string;
  /** Folder of the processes' logs, `<process>.log` each. */
  readonly logsFolder: string;
  /** Base URL of the operator's /metrics, /healthz and /readyz. */
  readonly operatorMetrics: string;
  /** Returns the path of a compatible kubectl, building it if necessary. */
  kubectl(): Promise<string>;
  /** Whether the gateway and telemetry run in separate processes (KELLET_SPLIT=1), the others in `services`. */
  readonly isSplit: boolean;
  /** host:port of the data plane's internal gRPC. */
  readonly control: string;
  /** Starts a further process of the data plane that runs these targets; resolves when it is ready. */
  startTarget(name: TargetName, target: string, settings?: Readonly<Record<string, string>>): Promise<TargetPorts>;
  /** Sends SIGKILL. The process is restarted automatically. Resolves when it is dead. */
  kill(name: ProcessName | TargetName): Promise<void>;
  /** Sends a signal, for example SIGSTOP and SIGCONT. */
  signal(name: ProcessName | TargetName, signal: NodeJS.Signals): void;
  /** Stops a process gracefully and keeps it stopped. */
  stopProcess(name: ProcessName | TargetName): Promise<void>;
  /** Starts a stopped process. Resolves when it is ready. */
  startProcess(name: ProcessName | TargetName): Promise<void>;
  /** Resolves when the process runs and is ready. */
  waitReady(name: ProcessName | TargetName, timeoutMilliseconds?: number): Promise<void>;
  /** Stops everything, and removes dev.json. Nothing is left running. */
  stop(): Promise<void>;
}

const tenants = { first: 'demo', other: 'acme' } as const;
const platformEmail = 'platform@kellet.test';

/** Returns PostgreSQL's data folder in a state folder. */
const postgresFolder = (stateFolder: string): string => join(stateFolder, 'postgres');

/**
 * Locks the state folder and stops processes left by an earlier run. Throws an Error if another stack uses it.
 */
async function openState(stateFolder: string, fresh: boolean, report: Report) {
  // Other users may traverse it, so that PostgreSQL's user reaches its data; secrets are in private folders.
  await mkdir(stateFolder, { recursive: true });
  await chmod(stateFolder, 0o711);
  const release = tryLock(join(stateFolder, 'lock'));
  if (!release) throw new Error(`a stack is running on ${stateFolder} already (see dev.json there): stop it first`);
  const recordsFolder = join(stateFolder, 'run');
  const ended = await endRecordedProcesses(recordsFolder);
  if (ended.length) report(`ended what an earlier run had left: ${ended.join(', ')}`);
  if (fresh) {
    await deleteKind(kubernetesFolder(stateFolder));
    for (const name of ['artifacts', 'cold', 'devchain', 'kubernetes', 'logs', 'nats', 'secrets']) {
      await rm(join(stateFolder, name), { recursive: true, force: true });
    }
    await removeReachableFolder(postgresFolder(stateFolder));
  }
  removeDevInfo(join(stateFolder, 'dev.json'));
  return { release, recordsFolder, logsFolder: join(stateFolder, 'logs') };
}

async function chooseAllPorts(stateFolder: string, environment: NodeJS.ProcessEnv, report: Report) {
  const path = join(stateFolder, 'ports.json');
  const open = <Name extends string>(name: Name, variable: string, usual: number) => ({
    ...{ name, variable, asked: environment[variable], usual },
  });
  const wishes = [
    open('rest', 'KELLET_REST_PORT', 8080),
    open('grpc', 'KELLET_GRPC_PORT', 9090),
    open('control', 'KELLET_CONTROL_PORT', 9091),
    open('metrics', 'KELLET_METRICS_PORT', 9464),
    open('dashboard', 'KELLET_DASHBOARD_PORT', 8081),
    open('mqtt', 'KELLET_MQTT_PORT', 1883),
    // The manifests in examples/ contain this port.
    open('artifacts', 'KELLET_ARTIFACTS_PORT', 8082),
    { name: 'devchain' as const, variable: 'KELLET_DEVCHAIN_PORT', asked: environment.KELLET_DEVCHAIN_PORT },
    ...(['operatorMetrics', 'postgres', 'nats'] as const).map((name) => ({ name })),
    ...(['servicesMetrics', 'telemetry', 'telemetryMetrics'] as const).map((name) => ({ name })),
    ...(['etcd', 'etcdPeer', 'kubeApiserver', 'kubeControllerManager'] as const).map((name) => ({ name })),
  ];
  const sources = { isFree: isPortFree, findFree: findFreePorts, remembered: await readPorts(path), report };
  const ports = await choosePorts(wishes, sources);
  await writePorts(path, ports);
  return ports;
}

/** `rateLimitPerMinute` of the two tenants, from KELLET_DEV_RATE_LIMIT. */
function devRateLimit(text: string | undefined): number | undefined {
  if (!text) return undefined;
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new Error('KELLET_DEV_RATE_LIMIT must be a number of requests per minute');
  return Number(text);
}

/**
 * Starts the stack. Resolves when everything is ready and dev.json is written. On an error, and when the signal aborts,
 * everything is stopped again.
 */
export async function startStack(options: StackOptions = {}): Promise<Stack> {
  const stopping = new Stopping();
  return startOrStop(stopping, () => bringUp(options, stopping), options.signal);
}

/** Starts only the Kubernetes API with the custom resource definitions, in a separate state folder. */
export async function startKubernetes(
  options: StackOptions = {},
): Promise<{ kubeconfig: string; supervisor: Supervisor; stop(): Promise<void> }> {
  const { report = () => undefined, signal } = options;
  const stateFolder = resolve(options.stateFolder ?? join(defaultStateFolder, 'kubernetes-only'));
  const environment: NodeJS.ProcessEnv = { ...process.env, ...options.environment };
  const stopping = new Stopping();
  const start = async () => {
    const { release, recordsFolder, logsFolder } = await openState(stateFolder, options.fresh ?? false, report);
    await stopping.add(release);
    const ports = await findFreePorts('etcd', 'etcdPeer', 'kubeApiserver', 'kubeControllerManager');
    const supervisor = createSupervisor({ recordsFolder, logsFolder, report });
    await stopping.add(() => supervisor.stopAll());
    const cluster = await startCluster({ supervisor, stateFolder, ports, environment, report, signal });
    await stopping.add(() => cluster.stop());
    await openResources(cluster.kubeconfig).applyDefinitions();
    return { kubeconfig: cluster.kubeconfig, supervisor, stop: () => stopping.stop() };
  };
  return startOrStop(stopping, start, signal);
}

async function bringUp(options: StackOptions, stopping: Stopping): Promise<Stack> {
  const { report = () => undefined, signal } = options;
  const stateFolder = resolve(options.stateFolder ?? defaultStateFolder);
  const environment: NodeJS.ProcessEnv = { ...process.env, ...options.environment };
  const rateLimitPerMinute = devRateLimit(environment.KELLET_DEV_RATE_LIMIT);
  const { release, recordsFolder, logsFolder } = await openState(stateFolder, options.fresh ?? false, report);
  await stopping.add(release);
  const infoPath = join(stateFolder, 'dev.json');
  const ports = await chooseAllPorts(stateFolder, environment, report);
  const secret = await openSecrets(join(stateFolder, 'secrets'));

  const written: { info?: DevInfo } = {};
  const supervisor = createSupervisor({
    recordsFolder,
    logsFolder,
    report,
    onStarted: () => writePids(),
  });
  const writePids = (): void => {
    if (!written.info) return;
    written.info.pids = pidsByName(supervisor.pids());
    writeDevInfo(infoPath, written.info);
  };
  await stopping.add(() => supervisor.stopAll());
  await stopping.add(() => removeDevInfo(infoPath));

  const callbackSecret = await secret('callback-hmac-secret', randomHexKey);
  const controlSecret = await secret('control-secret', randomHexKey);
  const step = async <T>(what: string, work: Promise<T>): Promise<T> => {
    const started = performance.now();
    const result = await work;
    signal?.throwIfAborted();
    report(`${what} ready after ${((performance.now() - started) / 1000).toFixed(1)} s`);
    return result;
  };

  const database = async (): Promise<string> => {
    if (environment.DATABASE_URL) return environment.DATABASE_URL;
    const password = (await secret('postgres-password')).value;
    const folder = postgresFolder(stateFolder);
    const { superuserUrl } = await startPostgres({
      ...{ supervisor, folder, port: ports.postgres, password },
      survivesPowerFailure: options.survivesPowerFailure ?? true,
    });
    return ensureServiceDatabase(superuserUrl, (await secret('database-password')).value);
  };
  const broker = async (): Promise<string> => {
    if (environment.NATS_URL) return environment.NATS_URL;
    const program = await natsServerProgram(report, signal);
    return startNats({ supervisor, program, folder: join(stateFolder, 'nats'), port: ports.nats });
  };
  const chain = async (): Promise<string | undefined> => {
    if (!usesDevchain(environment)) return undefined;
    return startDevchain({
      supervisor,
      folder: join(stateFolder, 'devchain'),
      port: ports.devchain,
      callbackSecret,
      blockMilliseconds: environment.KELLET_DEVCHAIN_BLOCK_MS,
    });
  };
  const kubernetes = async () => {
    const cluster = await startCluster({ supervisor, stateFolder, ports, environment, report, signal });
    await stopping.add(() => cluster.stop());
    const resources = openResources(cluster.kubeconfig);
    await resources.applyDefinitions();
    await resources.applyNamespace(systemNamespace);
    const identity = (service: ServiceName) =>
      serviceAccountKubeconfig(cluster.kubeconfig, join(stateFolder, 'secrets'), service);
    const [apiserverKubeconfig, operatorKubeconfig] = await Promise.all([identity('apiserver'), identity('operator')]);
    return { kubeconfig: cluster.kubeconfig, apiserverKubeconfig, operatorKubeconfig, resources };
  };
  const artifactsFolder = join(stateFolder, 'artifacts');
  const artifacts = await serveArtifacts(artifactsFolder, ports.artifacts);
  await stopping.add(() => artifacts.close());

  const [databaseUrl, natsUrl, devchain, { kubeconfig, apiserverKubeconfig, operatorKubeconfig, resources }] =
    await Promise.all([
      step('PostgreSQL', database()),
      step('NATS', broker()),
      step('devchain', chain()),
      step('Kubernetes API', kubernetes()),
    ]);

  buildDashboard();
  const platform = { email: platformEmail, password: await secret('platform-admin-password') };
  const walletKeyFile = environment.KELLET_WALLET_KEY_FILE || (await secret('wallet-key', randomHexKey)).path;
  const isSplit = environment.KELLET_SPLIT === '1';
  const dataPlane: ApiserverOptions = {
    ...{
      supervisor,
      ports,
      kubeconfig: apiserverKubeconfig,
      databaseUrl,
      natsUrl,
      controlSecret,
      callbackSecret,
      walletKeyFile,
    },
    artifactHost: new URL(artifacts.url).host,
    coldFolder: join(stateFolder, 'cold'),
    ...{ platform, devchain, environment, jwtPrivateKey: await secret('jwt-private-key.pem', ed25519PrivateKey) },
  };
  await step('apiserver', isSplit ? startSplitApiserver(dataPlane, ports) : startApiserver(dataPlane));
  const operator = { supervisor, metricsPort: ports.operatorMetrics, controlPort: ports.control };
  await step('operator', startOperator({ ...operator, kubeconfig: operatorKubeconfig, controlSecret, environment }));

  const account = async (tenant: string) => ({
    tenant,
    email: `admin@${tenant}.test`,
    password: (await secret(`tenant-${tenant}-password`)).value,
  });
  const [first, other] = await Promise.all([account(tenants.first), account(tenants.other)]);
  const both = [first, other].map((tenant) => resources.applyTenant({ ...tenant, rateLimitPerMinute }, signal));
  await step('tenants', Promise.all(both));
  await resources.applyUserAccess(`kellet-${first.tenant}`, `http://127.0.0.1:${ports.rest}`);

  const info: DevInfo = {
    rest: `http://127.0.0.1:${ports.rest}`,
    grpc: `127.0.0.1:${ports.grpc}`,
    metrics: `http://127.0.0.1:${ports.metrics}`,
    dashboard: environment.KELLET_DASHBOARD_ORIGIN || dashboardOrigin(ports.dashboard),
    kubeconfig,
    namespace: `kellet-${first.tenant}`,
    ...first,
    other,
    platform: { email: platform.email, password: platform.password.value },
    callbackSecret: callbackSecret.value,
    ...(devchain ? { devchain } : {}),
    databaseUrl,
    natsUrl,
    mqtt: `mqtt://127.0.0.1:${ports.mqtt}`,
    artifacts: artifacts.url,
    pids: pidsByName(supervisor.pids()),
  };
  written.info = info;
  writeDevInfo(infoPath, info);

  return {
    info,
    infoPath,
    artifactsFolder,
    logsFolder,
    operatorMetrics: `http://127.0.0.1:${ports.operatorMetrics}`,
    kubectl: () => kubectlProgram(report),
    isSplit,
    control: `127.0.0.1:${ports.control}`,
    startTarget: async (name, target, settings = {}) => {
      const own = {
        ...dataPlane,
        ports: await findFreePorts('rest', 'grpc', 'control', 'metrics', 'dashboard', 'mqtt'),
      };
      const { rest, grpc, control, metrics, mqtt } = own.ports;
      await startTarget(own, name, target, settings);
      return {
        rest: `http://127.0.0.1:${rest}`,
        grpc: `127.0.0.1:${grpc}`,
        control: `127.0.0.1:${control}`,
        metrics: `http://127.0.0.1:${metrics}`,
        mqtt: `mqtt://127.0.0.1:${mqtt}`,
      };
    },
    kill: (name) => supervisor.kill(name),
    signal: (name, value) => supervisor.signal(name, value),
    stopProcess: async (name) => {
      await supervisor.stop(name);
      writePids();
    },
    startProcess: (name) => supervisor.startAgain(name),
    waitReady: (name, timeoutMilliseconds) => supervisor.waitReady(name, timeoutMilliseconds),
    stop: () => stopping.stop(),
  };
}

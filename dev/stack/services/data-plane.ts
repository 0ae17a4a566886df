// Runs Kellet's own two programs, apiserver and operator, from their sources.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { systemNamespace } from '../cluster/resources.ts';
import { checkout } from '../paths.ts';
import { httpStatus } from '../processes/probe.ts';
import type { Supervisor } from '../processes/supervisor.ts';
import type { Secret } from '../secrets.ts';

/** What the data plane depends on. Secrets are passed by file. */
export interface ApiserverOptions {
  supervisor: Supervisor;
  ports: { rest: number; grpc: number; control: number; metrics: number; dashboard: number; mqtt: number };
  kubeconfig: string;
  databaseUrl: string;
  natsUrl: string;
  controlSecret: Secret;
  callbackSecret: Secret;
  jwtPrivateKey: Secret;
  walletKeyFile: string;
  platform: { email: string; password: Secret };
  /** host:port of the stack's artifact server, the only private address from which artifacts are fetched. */
  artifactHost: string;
  /** Folder in which points turn cold. */
  coldFolder: string;
  /** The local chain's base URL; without it `environment` configures the processor. */
  devchain?: string | undefined;
  /** Settings of the user (KELLET_…), which take precedence except over the stack's own wiring. */
  environment: NodeJS.ProcessEnv;
}

/** Reports whether the stack runs devchain, as it does unless KELLET_ARC_URL names a processor. */
export const usesDevchain = (environment: NodeJS.ProcessEnv): boolean => !environment['KELLET_ARC_URL'];

/** Origin of the dashboard. */
export const dashboardOrigin = (port: number): string => `http://127.0.0.1:${port}`;

/** The environment that connects the data plane to the rest of the stack. */
function apiserverEnvironment(options: ApiserverOptions): Record<string, string | undefined> {
  const { ports, environment, devchain } = options;
  const rest = `http://127.0.0.1:${ports.rest}`;
  const chain = devchain
    ? {
        KELLET_NETWORK: 'local',
        KELLET_ARC_URL: devchain,
        KELLET_HEADERS_URL: devchain,
        KELLET_FUNDING_URL: `${devchain}/dev/fund`,
      }
    : {};
  return {
    ...environment,
    ...chain,
    KELLET_ENVIRONMENT: 'development',
    KELLET_LISTEN_HOST: '127.0.0.1',
    KELLET_REST_PORT: String(ports.rest),
    KELLET_GRPC_PORT: String(ports.grpc),
    KELLET_CONTROL_PORT: String(ports.control),
    KELLET_METRICS_PORT: String(ports.metrics),
    KELLET_DASHBOARD_PORT: String(ports.dashboard),
    KELLET_MQTT_PORT: String(ports.mqtt),
    KELLET_DASHBOARD_ORIGIN: environment.KELLET_DASHBOARD_ORIGIN || dashboardOrigin(ports.dashboard),
    KELLET_DATABASE_URL: options.databaseUrl,
    KELLET_NATS_URL: options.natsUrl,
    KUBECONFIG: options.kubeconfig,
    KELLET_CONTROL_SECRET_FILE: options.controlSecret.path,
    KELLET_JWT_PRIVATE_KEY_FILE: options.jwtPrivateKey.path,
    KELLET_CALLBACK_HMAC_SECRET_FILE: options.callbackSecret.path,
    KELLET_CALLBACK_URL: environment.KELLET_CALLBACK_URL || `${rest}/api/v1/callbacks/arc`,
    KELLET_WALLET_KEY_FILE: options.walletKeyFile,
    KELLET_PLATFORM_ADMIN_EMAIL: options.platform.email,
    KELLET_PLATFORM_ADMIN_PASSWORD_FILE: options.platform.password.path,
    KELLET_ARTIFACT_HOSTS: [options.artifactHost, environment.KELLET_ARTIFACT_HOSTS].filter(Boolean).join(','),
    KELLET_COLD_URL: environment.KELLET_COLD_URL ?? pathToFileURL(options.coldFolder).href,
    // For trying things out, twelve characters are enough.
    KELLET_PASSWORD_STRENGTH: environment.KELLET_PASSWORD_STRENGTH || '0',
    // Tests and examples receive webhooks on this machine.
    KELLET_SSO_HOSTS: environment.KELLET_SSO_HOSTS || '127.0.0.1,localhost',
    KELLET_WEBHOOK_HOSTS: environment.KELLET_WEBHOOK_HOSTS || '127.0.0.1,localhost',
    KELLET_PUBLISH_POINTS: environment.KELLET_PUBLISH_POINTS ?? '*',
  };
}

/** Ports of the further processes of a split data plane. */
export interface SplitPorts {
  servicesMetrics: number;
  telemetry: number;
  telemetryMetrics: number;
}

/** Starts the data plane under the supervisor in one process (`apiserver`) and resolves when it is ready to serve. */
export async function startApiserver(options: ApiserverOptions): Promise<void> {
  await startTarget(options, 'apiserver', 'all', {});
}

/**
 * Starts the data plane in three processes (KELLET_SPLIT=1): `apiserver` (the gateway), `telemetry`, and `services`
 * (the rest). Resolves when all are ready to serve.
 */
export async function startSplitApiserver(options: ApiserverOptions, ports: SplitPorts): Promise<void> {
  const { control } = options.ports;
  const addresses = { KELLET_SERVICE_ADDRESSES: `telemetry=127.0.0.1:${ports.telemetry},*=127.0.0.1:${control}` };
  const at = (controlPort: number, metrics: number) => ({
    ...options,
    ports: { ...options.ports, control: controlPort, metrics },
  });
  await Promise.all([
    startTarget(
      at(control, ports.servicesMetrics),
      'services',
      'auth,device-registry,device-link,rules-engine,chain-anchor,verifier,control',
      {},
    ),
    startTarget(at(ports.telemetry, ports.telemetryMetrics), 'telemetry', 'telemetry', {}),
    startTarget(options, 'apiserver', 'gateway', addresses),
  ]);
}

/** Starts a process that runs some targets, with settings on top of the stack's, and resolves when it is ready. */
export async function startTarget(
  options: ApiserverOptions,
  name: string,
  target: string,
  settings: Readonly<Record<string, string>>,
): Promise<void> {
  const { supervisor, ports } = options;
  await supervisor.start({
    name,
    command: process.execPath,
    args: [join(checkout, 'apiserver/src/main.ts'), `--target=${target}`],
    environment: { ...apiserverEnvironment(options), ...settings },
    // Longer than its own drain, so that everything acknowledged is written before it exits.
    stopTimeoutMilliseconds: 45_000,
    isReady: async () => (await httpStatus(`http://127.0.0.1:${ports.metrics}/readyz`)) === 200,
  });
}

export interface OperatorOptions {
  supervisor: Supervisor;
  metricsPort: number;
  controlPort: number;
  kubeconfig: string;
  controlSecret: Secret;
  /** Settings of the user (KELLET_…). */
  environment: NodeJS.ProcessEnv;
}

/** Starts the operator under the supervisor (process `operator`) and resolves when it is ready. */
export async function startOperator(options: OperatorOptions): Promise<void> {
  const { supervisor, metricsPort, controlPort, kubeconfig, controlSecret, environment } = options;
  await supervisor.start({
    name: 'operator',
    command: process.execPath,
    args: [join(checkout, 'operator/src/main.ts')],
    environment: {
      KELLET_DRIFT_CHECK_SECONDS: environment.KELLET_DRIFT_CHECK_SECONDS,
      KUBECONFIG: kubeconfig,
      KELLET_CONTROL_ADDRESS: `127.0.0.1:${controlPort}`,
      KELLET_CONTROL_SECRET_FILE: controlSecret.path,
      KELLET_METRICS_PORT: String(metricsPort),
      KELLET_LEASE_NAMESPACE: systemNamespace,
      // The supervisor runs one operator at a time, so a new one need not wait for the lease of a killed one.
      KELLET_IDENTITY: 'local-stack',
    },
    stopTimeoutMilliseconds: 35_000,
    isReady: async () => (await httpStatus(`http://127.0.0.1:${metricsPort}/readyz`)) === 200,
  });
}

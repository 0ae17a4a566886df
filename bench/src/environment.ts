// Environment of the benchmarks: PostgreSQL, NATS and a complete apiserver, started for one run.
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { mintKey } from '../../apiserver/src/auth/credentials/api-key-format.ts';
import { newId } from '../../apiserver/src/platform/ids.ts';
import { findFreePorts } from '../../dev/stack/ports/free-ports.ts';
import { createSupervisor } from '../../dev/stack/processes/supervisor.ts';
import { natsServerProgram } from '../../dev/stack/programs/binaries.ts';
import { ed25519PrivateKey, openSecrets, randomHexKey, randomPassword } from '../../dev/stack/secrets.ts';
import { startDevchain } from '../../dev/stack/services/devchain.ts';
import { startNats } from '../../dev/stack/services/nats.ts';
import { ensureServiceDatabase, startPostgres } from '../../dev/stack/services/postgres.ts';
import { continueChain } from './continued-chain.ts';

/** A running data plane with one tenant. */
export interface Environment {
  /** Base URL of REST. */
  readonly rest: { readonly host: string; readonly port: number };
  /** host:port of gRPC. */
  readonly grpc: string;
  readonly mqtt: { readonly host: string; readonly port: number };
  /** Base URL of the local chain, if it runs. */
  readonly devchain: string | undefined;
  /** URL of the metrics. */
  readonly metrics: string;
  /** Settings with which the apiserver runs. */
  readonly settings: Readonly<Record<string, string>>;
  /** The service's own database URL. */
  readonly databaseUrl: string;
  readonly tenantId: string;
  /** A service key with the scopes that the benchmarks need. */
  readonly apiKey: string;
  readonly deviceIds: readonly string[];
  /** Process ids by name: apiserver, postgres, nats, and devchain if it runs. */
  readonly pids: Readonly<Record<string, number>>;
  close(): Promise<void>;
}

/** An unreachable cluster, because no benchmark here needs the Kubernetes API. */
const kubeconfig = JSON.stringify({
  apiVersion: 'v1',
  kind: 'Config',
  'current-context': 'none',
  clusters: [{ name: 'none', cluster: { server: 'https://127.0.0.1:1' } }],
  users: [{ name: 'none', user: {} }],
  contexts: [{ name: 'none', context: { cluster: 'none', user: 'none' } }],
});

const tenantId = 'bench';
const scopes = [
  ...['telemetry:read', 'telemetry:write', 'devices:read', 'devices:write', 'rpc:read', 'rpc:write'],
  ...['anchors:read', 'verify:read'],
];

/** Options of an environment. */
export interface EnvironmentOptions {
  /** Runs the local chain, on which batches are then anchored. It continues the one that `fill` has stored. */
  readonly chain?: boolean;
  /** Fills the empty database before the apiserver starts; returns settings that it then needs. `restart` restarts PostgreSQL. */
  readonly fill?: (address: {
    readonly databaseUrl: string;
    readonly superuserUrl: string;
    readonly coldFolder: string;
    readonly restart: () => Promise<void>;
  }) => Promise<Record<string, string>>;
  /** Settings (KELLET_…) of the apiserver. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Folder for a CPU profile of the apiserver, written when it is stopped. */
  readonly profileFolder?: string;
}

/** A folder with a supervisor of processes, and PostgreSQL in it, which can be restarted. Both URLs lead to the same empty database. */
export async function startDatabase(report: (line: string) => void) {
  const folder = await mkdtemp(join(tmpdir(), 'kellet-bench-'));
  await chmod(folder, 0o711);
  const supervisor = createSupervisor({ recordsFolder: join(folder, 'run'), logsFolder: join(folder, 'logs'), report });
  const close = async () => {
    await supervisor.stopAll();
    await rm(folder, { recursive: true, force: true });
  };
  try {
    const { port } = await findFreePorts('port');
    const password = randomPassword();
    const { superuserUrl } = await startPostgres({ supervisor, folder: join(folder, 'postgres'), port, password });
    const databaseUrl = await ensureServiceDatabase(superuserUrl, password);
    const superuser = new URL(superuserUrl);
    superuser.pathname = new URL(databaseUrl).pathname;
    const restart = async () => {
      await supervisor.stop('postgres');
      await supervisor.startAgain('postgres');
    };
    return { folder, supervisor, close, databaseUrl, superuserUrl: superuser.href, restart };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Starts everything. The tenant's rate limit is raised so that it does not affect the measurements. */
export async function startEnvironment(
  report: (line: string) => void,
  devices = 1000,
  { chain = false, settings = {}, fill, profileFolder }: EnvironmentOptions = {},
): Promise<Environment> {
  const { folder, supervisor, close, databaseUrl, superuserUrl, restart } = await startDatabase(report);
  try {
    const filled = await fill?.({ databaseUrl, superuserUrl, coldFolder: join(folder, 'cold'), restart });
    const ports = await findFreePorts('nats', 'rest', 'grpc', 'control', 'metrics', 'mqtt', 'devchain');
    const program = await natsServerProgram(report);
    const natsUrl = await startNats({ supervisor, program, folder: join(folder, 'nats'), port: ports.nats });
    const kubeconfigPath = join(folder, 'kubeconfig');
    await writeFile(kubeconfigPath, kubeconfig);
    const secrets = await openSecrets(join(folder, 'secrets'));
    const callbackSecret = await secrets('callback');
    const devchain = chain
      ? await startDevchain({
          ...{ supervisor, folder: join(folder, 'devchain'), port: ports.devchain, callbackSecret },
          blockMilliseconds: '1000',
          headersFile: fill && (await continueChain(databaseUrl, join(folder, 'devchain'))),
        })
      : undefined;
    const environment = {
      KELLET_ENVIRONMENT: 'development',
      KELLET_NETWORK: 'local',
      KELLET_LOG_LEVEL: 'warn',
      KELLET_LISTEN_HOST: '127.0.0.1',
      KELLET_REST_PORT: String(ports.rest),
      KELLET_DASHBOARD_PORT: '0',
      KELLET_MQTT_PORT: String(ports.mqtt),
      KELLET_GRPC_PORT: String(ports.grpc),
      KELLET_CONTROL_PORT: String(ports.control),
      KELLET_METRICS_PORT: String(ports.metrics),
      KELLET_DATABASE_URL: databaseUrl,
      KELLET_NATS_URL: natsUrl,
      KELLET_CONTROL_SECRET_FILE: (await secrets('control', randomHexKey)).path,
      KELLET_CALLBACK_HMAC_SECRET_FILE: callbackSecret.path,
      KELLET_JWT_PRIVATE_KEY_FILE: (await secrets('jwt', ed25519PrivateKey)).path,
      KUBECONFIG: kubeconfigPath,
      ...(devchain !== undefined && {
        KELLET_ARC_URL: devchain,
        KELLET_HEADERS_URL: devchain,
        KELLET_FUNDING_URL: `${devchain}/dev/fund`,
        KELLET_CALLBACK_URL: `http://127.0.0.1:${ports.rest}/api/v1/callbacks/arc`,
        KELLET_WALLET_KEY_FILE: (await secrets('wallet', randomHexKey)).path,
      }),
      ...filled,
      ...settings,
    };
    await supervisor.start({
      name: 'apiserver',
      command: process.execPath,
      args: [
        ...(profileFolder === undefined ? [] : ['--cpu-prof', '--cpu-prof-dir', profileFolder]),
        join(import.meta.dirname, '../../apiserver/src/main.ts'),
      ],
      environment,
      isReady: async () => (await fetch(`http://127.0.0.1:${ports.metrics}/readyz`)).status === 200,
    });
    const seeded = await seed(databaseUrl, devices);
    return {
      rest: { host: '127.0.0.1', port: ports.rest },
      grpc: `127.0.0.1:${ports.grpc}`,
      mqtt: { host: '127.0.0.1', port: ports.mqtt },
      devchain,
      metrics: `http://127.0.0.1:${ports.metrics}/metrics`,
      settings: environment,
      databaseUrl,
      tenantId,
      ...seeded,
      pids: supervisor.pids(),
      close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

async function seed(databaseUrl: string, devices: number): Promise<{ apiKey: string; deviceIds: string[] }> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query(
      `INSERT INTO tenants (tenant_id, name, namespace, rate_limit_per_minute) VALUES ($1, $1, $1, 1000000000)`,
      [tenantId],
    );
    const deviceIds = Array.from({ length: devices }, newId);
    await client.query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT $1, device_id, 'device', 'hw-' || device_id FROM unnest($2::uuid[]) AS device_id`,
      [tenantId, deviceIds],
    );
    const { key, hash, prefix, last4 } = mintKey();
    await client.query(
      `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, scopes) VALUES ($1, $2, $3, $4, $5, $6)`,
      [newId(), tenantId, hash, prefix, last4, scopes],
    );
    return { apiKey: key, deviceIds };
  } finally {
    await client.end();
  }
}

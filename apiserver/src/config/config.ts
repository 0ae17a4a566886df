// Settings of kellet-apiserver: one table for flags, environment variables, the configuration file and help.
import { readFileSync } from 'node:fs';
import { isRange } from '../platform/addresses/address-ranges.ts';
import { parseBrokerServers } from '../platform/events/broker-servers.ts';
import { nearestName } from '../platform/nearest-name.ts';
import { storeProblem } from '../platform/object-store/open-store.ts';
import type { S3Settings } from '../platform/object-store/s3-client.ts';
import { logLevels } from '../platform/observability/logger.ts';
import { parseOutboundHosts } from '../platform/outbound/outbound-addresses.ts';
import { type ConfigFile, readConfigFile } from './config-file.ts';
import { allTargets, parseAddresses, parseTargets, remoteTargets, type Target } from './targets.ts';
import { isServiceLink, unknownVariables } from './variables.ts';

/** Targets that sign page tokens or access tokens: all but the gateway, which holds no key. */
const services = allTargets.filter((target) => target !== 'gateway' && target !== 'dashboard-bff');

interface Setting {
  readonly type:
    | 'string'
    | 'integer'
    | 'number'
    | 'boolean'
    | 'origin'
    | 'ranges'
    | 'hosts'
    | 'store'
    | 'storeUrl'
    | 'tenants'
    | 'broker'
    | readonly string[];
  /** Smallest and greatest value of an integer or number. */
  readonly minimum?: number;
  readonly maximum?: number;
  readonly fallback?: string;
  /** Omitted from output; may be given as a file by the name with _FILE. */
  readonly secret?: boolean;
  /** Minimum length in characters. */
  readonly shortest?: number;
  /** Required by every target, or by these. */
  readonly required?: boolean | readonly Target[];
  readonly help: string;
}

const settings = {
  target: { type: 'string', fallback: 'all', help: `services of this process: all, or any of ${allTargets.join(',')}` },
  serviceAddresses: {
    type: 'string',
    fallback: '',
    help: 'internal ports of the services of other processes, as telemetry=host:9091,*=host:9091',
  },
  environment: {
    type: ['development', 'production'],
    fallback: 'production',
    help: 'production rejects unsafe settings',
  },
  listenHost: { type: 'string', fallback: '0.0.0.0', help: 'address to listen on' },
  restPort: { type: 'integer', fallback: '8080', help: 'REST and /ws; 0: any free port' },
  grpcPort: { type: 'integer', fallback: '9090', help: 'public gRPC' },
  mqttPort: { type: 'integer', fallback: '1883', help: 'MQTT of devices; also at /mqtt on the REST port' },
  mqttTlsPort: { type: 'integer', fallback: '8883', help: 'MQTT over TLS, if KELLET_TLS_CERT_FILE is set' },
  tlsCertFile: {
    type: 'string',
    fallback: '',
    help: 'certificate chain of the TLS ports, PEM; read again when it changes',
  },
  tlsKeyFile: { type: 'string', fallback: '', help: 'private key of that certificate, PEM' },
  restTls: { type: 'boolean', fallback: 'false', help: 'REST and /ws only over TLS, with KELLET_TLS_CERT_FILE' },
  grpcTls: { type: 'boolean', fallback: 'false', help: 'public gRPC only over TLS, with KELLET_TLS_CERT_FILE' },
  clientCertificateHeader: {
    type: 'string',
    fallback: '',
    help: 'header in which KELLET_TRUSTED_PROXIES name the client’s certificate: x-forwarded-client-cert as Envoy writes it, any other as URL-encoded PEM',
  },
  deviceCertificateDays: {
    type: 'integer',
    fallback: '365',
    minimum: 1,
    maximum: 3650,
    help: 'days that certificates of devices are valid',
  },
  mqttRate: {
    type: 'integer',
    fallback: '100',
    minimum: 1,
    help: 'MQTT messages a second of one device; the server reads no faster',
  },
  controlTlsCertFile: {
    type: 'string',
    fallback: '',
    help: 'certificate chain of the internal port and of its clients, PEM; read again when it changes',
  },
  controlTlsKeyFile: { type: 'string', fallback: '', help: 'private key of that certificate, PEM' },
  controlTlsCaFile: {
    type: 'string',
    fallback: '',
    help: 'authority that has signed the certificates of the internal port and its clients, and no others, PEM',
  },
  controlPort: { type: 'integer', fallback: '9091', help: 'internal gRPC, for the operator and other targets' },
  metricsPort: { type: 'integer', fallback: '9464', help: '/metrics, /healthz, /readyz' },
  dashboardPort: { type: 'integer', fallback: '8081', help: 'static pages: the dashboard and the API reference' },
  logLevel: {
    type: logLevels,
    fallback: 'info',
    help: 'minimum level that is logged',
  },
  accessLog: {
    type: ['off', 'errors', 'requests', 'all'],
    fallback: 'requests',
    help: 'what is logged on standard output: nothing, failures, all requests except health probes, everything',
  },
  databaseUrl: { type: 'string', secret: true, required: true, help: 'PostgreSQL connection URL' },
  databaseDirectUrl: {
    type: 'string',
    secret: true,
    fallback: '',
    help: 'the same without the pooler, if KELLET_DATABASE_URL leads through one in transaction mode',
  },
  databaseConnections: {
    type: 'integer',
    fallback: '12',
    minimum: 6,
    help: 'maximum connections of a process to PostgreSQL; four of them are for listening, writing points and locks',
  },
  slowStatementMilliseconds: {
    type: 'integer',
    fallback: '1000',
    help: 'database statements that take at least this long are logged and counted; 0: none',
  },
  redisUrl: {
    type: 'string',
    secret: true,
    fallback: '',
    help: 'Redis or Valkey that counts requests for the rate limit; empty: PostgreSQL counts',
  },
  natsUrl: {
    type: 'broker',
    secret: true,
    required: true,
    help: 'URL of NATS, or those of the members of a cluster, separated by commas',
  },
  natsReplicas: {
    type: 'integer',
    fallback: '0',
    maximum: 5,
    help: 'members of a NATS cluster that store each event; 0: as the stream is, and 1 for a new one',
  },
  natsStreamBytes: {
    type: 'integer',
    fallback: '1073741824',
    minimum: 0,
    maximum: 1_000_000_000_000,
    help: 'bytes of events that each member of NATS keeps, for a week at most; the oldest are discarded first; 0: no limit',
  },
  controlSecret: {
    type: 'string',
    secret: true,
    required: true,
    // 32 hexadecimal digits have 128 bits.
    shortest: 32,
    help: 'shared secret of the internal port, at least 32 characters',
  },
  previousControlSecret: {
    type: 'string',
    fallback: '',
    secret: true,
    help: 'KELLET_CONTROL_SECRET before it was changed, with which pre-shared keys of devices keep working',
  },
  sourceControlSecret: {
    type: 'string',
    secret: true,
    fallback: '',
    help: 'KELLET_CONTROL_SECRET of the installation that a tenant is imported from, if it is another one',
  },
  jwtPrivateKey: {
    type: 'string',
    secret: true,
    required: services,
    help: 'Ed25519 key that signs access tokens, PKCS#8 PEM',
  },
  platformAdminEmail: { type: 'string', fallback: '', help: 'account created at start if it is missing' },
  platformAdminPassword: { type: 'string', secret: true, fallback: '', help: 'initial password of that account' },
  dashboardOrigin: { type: 'origin', fallback: '', help: 'the only origin with cross-origin access' },
  trustedProxies: {
    type: 'ranges',
    fallback: '',
    help: 'addresses or CIDR ranges, separated by commas, whose X-Forwarded-For or Forwarded is trusted',
  },
  publicUrl: {
    type: 'string',
    fallback: '',
    help: 'base URL of the REST API, for the dashboard, the reference page and single sign-on; empty: the requested host, over https if KELLET_REST_TLS is set',
  },
  maximumConnections: {
    type: 'integer',
    fallback: '10000',
    help: 'maximum concurrent connections, each of the REST port, the gRPC port and MQTT, and calls over gRPC',
  },
  deviceCacheBytes: {
    type: 'integer',
    fallback: '209715200',
    minimum: 1_000_000,
    maximum: 9_000_000_000,
    help: 'memory of a process for what it knows of devices that send points, about 1,000 bytes for each, and two thirds of that for newest points that are not written yet',
  },
  drainDelaySeconds: {
    type: 'integer',
    fallback: '0',
    help: 'seconds between SIGTERM and closing the ports; not ready meanwhile',
  },
  drainSeconds: {
    type: 'integer',
    fallback: '20',
    help: 'seconds that running requests may take to finish after that',
  },
  commandRetentionDays: {
    type: 'integer',
    fallback: '30',
    help: 'days that commands to devices are kept after they end',
  },
  transactionRetentionDays: {
    type: 'integer',
    fallback: '30',
    minimum: 1,
    help: 'days that transactions are kept apart from their batches, if they are final',
  },
  rolloutRetentionDays: {
    type: 'integer',
    fallback: '180',
    minimum: 1,
    help: 'days that the devices of a rollout are listed after it has completed',
  },
  deviceHistoryDays: {
    type: 'integer',
    fallback: '365',
    help: 'days that the history of devices is kept; changes of their status at most 30',
  },
  jwtRotationDays: {
    type: 'integer',
    fallback: '0',
    help: 'days after which the key that signs access tokens is replaced; 0: only by the command keys rotate',
  },
  auditRetentionDays: {
    type: 'integer',
    fallback: '400',
    minimum: 1,
    help: 'days that events of the audit log are kept',
  },
  auditAnchorSeconds: {
    type: 'integer',
    fallback: '600',
    minimum: 1,
    help: 'seconds after which new events of an audit log are anchored',
  },
  batchPoints: { type: 'integer', fallback: '1000', help: 'points after which an anchor batch is sealed' },
  batchSeconds: { type: 'integer', fallback: '30', help: 'seconds after which an anchor batch is sealed' },
  publishPoints: {
    type: 'tenants',
    fallback: '',
    help: 'tenants whose points are published on NATS, separated by commas; *: all; the command publish-points overrides it for a tenant',
  },
  network: { type: ['main', 'test', 'local'], fallback: 'main', help: 'chain network' },
  arcUrl: { type: 'string', fallback: '', help: "base URL of the transaction processor's API" },
  arcToken: { type: 'string', secret: true, fallback: '', help: 'bearer token of the transaction processor' },
  headersUrl: { type: 'string', fallback: '', help: 'base URL of a ChainTracks v2 header source' },
  nodeRpcUrl: {
    type: 'string',
    secret: true,
    fallback: '',
    help: 'JSON-RPC URL of a node, with user and password, for headers and for blocks that the processor missed',
  },
  deepestReorganisation: {
    type: 'integer',
    fallback: '0',
    help: 'maximum number of headers that a branch may replace; 0: 20 on main, 100 on test, unlimited on local',
  },
  fundingUrl: { type: 'string', fallback: '', help: 'URL that funds the wallet on request; local network only' },
  walletKey: { type: 'string', secret: true, fallback: '', help: 'private key that pays for anchors, 64 hex digits' },
  maximumFeeRate: {
    type: 'integer',
    fallback: '500',
    minimum: 1,
    help: 'satoshis paid for 1,000 bytes of a transaction at most, whatever the processor asks for',
  },
  callbackUrl: { type: 'string', fallback: '', help: 'URL at which the processor reaches /api/v1/callbacks/arc' },
  callbackHmacSecret: { type: 'string', secret: true, required: ['gateway'], help: 'key of X-ARC-Signature' },
  callbackSkipValidation: { type: 'boolean', fallback: 'false', help: 'accept unsigned callbacks; local network only' },
  artifactHosts: {
    type: 'hosts',
    fallback: '',
    help: 'internal servers of artifacts, separated by commas: host, *.suffix, address (each with optional :port) or CIDR',
  },
  artifactBuckets: {
    type: 'string',
    fallback: '*',
    help: 'buckets or BUCKET/PREFIX, separated by commas, from which tenants may fetch with KELLET_S3_ACCESS_KEY; {tenant}: the tenant; *: any',
  },
  webhookHosts: {
    type: 'hosts',
    fallback: '',
    help: 'internal servers that webhooks may call, separated by commas, as in KELLET_ARTIFACT_HOSTS',
  },
  passwordStrength: {
    type: 'integer',
    fallback: '3',
    minimum: 0,
    maximum: 4,
    help: 'how hard to guess new passwords must be, by an estimate that knows common ones: 0 (12 characters suffice) to 4',
  },
  ssoHosts: {
    type: 'hosts',
    fallback: '',
    help: 'internal OpenID Connect providers, separated by commas, as in KELLET_ARTIFACT_HOSTS',
  },
  artifactMaxBytes: {
    type: 'integer',
    fallback: '4294967295',
    minimum: 1,
    maximum: 4_294_967_295,
    help: 'maximum size of an artifact',
  },
  artifactStore: {
    type: 'store',
    fallback: 'postgres',
    help: 'where new artifacts are stored: postgres, file:///FOLDER or s3://BUCKET/PREFIX',
  },
  artifactTransfers: {
    type: 'integer',
    fallback: '32',
    minimum: 1,
    help: 'maximum concurrent downloads of artifacts per process, and the same number of uploads; others wait',
  },
  artifactTransfersPerTenant: {
    type: 'integer',
    fallback: '4',
    minimum: 1,
    help: 'maximum of these per tenant',
  },
  artifactCacheBytes: {
    type: 'integer',
    fallback: '67108864',
    minimum: 0,
    help: 'memory of a process for chunks of artifacts that devices are downloading',
  },
  coldUrl: {
    type: 'storeUrl',
    fallback: '',
    help: 'where points turn cold, as Parquet files: file:///FOLDER or s3://BUCKET/PREFIX; empty: they stay in the database',
  },
  tenantGraceDays: {
    type: 'number',
    fallback: '30',
    maximum: 36_500,
    help: 'days after its deletion in which a tenant can be restored, before its data is purged; fractions are allowed',
  },
  hotHours: {
    type: 'number',
    fallback: '24',
    maximum: 1_000_000,
    help: 'hours after which points turn cold; fractions are allowed',
  },
  s3Endpoint: { type: 'string', fallback: '', help: 'base URL of the S3 service; empty: Amazon S3 of the region' },
  s3Region: { type: 'string', fallback: 'us-east-1', help: 'region of the S3 service' },
  s3AccessKey: { type: 'string', secret: true, fallback: '', help: 'access key of the S3 service' },
  s3SecretKey: { type: 'string', secret: true, fallback: '', help: 'secret key of the S3 service' },
} as const satisfies Record<string, Setting>;

type Value<S extends Setting> = S['type'] extends 'integer' | 'number'
  ? number
  : S['type'] extends 'boolean'
    ? boolean
    : S['type'] extends readonly (infer Choice)[]
      ? Choice
      : string;

/** The configuration with checked values. */
export type Config = { readonly [K in keyof typeof settings]: Value<(typeof settings)[K]> } & {
  /** The parsed value of `target`. */
  readonly targets: ReadonlySet<Target>;
  /** Addresses of the targets that this process calls but does not run. */
  readonly addresses: ReadonlyMap<Target, string>;
};

/** KELLET_REST_PORT for restPort. */
const environmentName = (key: string): string =>
  `KELLET_${key.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`;
const flagName = (key: string): string => `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

const configVariable = 'KELLET_CONFIG_FILE';
const configFlag = '--config';
const configHelpText = 'YAML or JSON file of settings, which flags and variables take precedence over';

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Reads the configuration: a flag takes precedence over the environment, the environment over the file that `--config` or
 * KELLET_CONFIG_FILE names, and the file over the default. A secret may be given as a separate file (KELLET_X_FILE, or
 * xFile in the file). Throws one Error listing all missing, invalid and unknown settings.
 */
export function readConfig(environment: Environment, flags: readonly string[], use: Use = 'targets'): Config {
  const { config, problems } = collectConfig(environment, flags, use);
  if (problems.length > 0) throw new Error(`configuration:\n  ${problems.join('\n  ')}`);
  return config;
}

/**
 * What settings are read for: to run the targets, or a command, which runs none. With `targets: split` of the chart no pod has what
 * all targets require, so a command asks by itself for the keys that it uses.
 */
type Use = 'targets' | 'command';

/** Like `readConfig`, but returns the problems. With any, the configuration is incomplete. */
export function collectConfig(
  environment: Environment,
  flags: readonly string[],
  use: Use = 'targets',
): { readonly config: Config; readonly problems: readonly string[] } {
  const problems: string[] = [];
  const sources = openSources(environment, flags, problems);
  const values: Record<string, unknown> = {};
  const attempt = <T>(name: string, read: () => T, fallback: T): T => {
    try {
      return read();
    } catch (error) {
      problems.push(`${name}: ${(error as Error).message}`);
      return fallback;
    }
  };
  const target = textOf('target', sources, problems);
  const named = attempt(target?.name ?? '', () => parseTargets(target?.text ?? 'all'), new Set(allTargets));
  const targets: ReadonlySet<Target> = use === 'command' ? new Set() : named;
  for (const [key, setting] of Object.entries<Setting>(settings)) {
    const found = key === 'target' ? target : textOf(key, sources, problems);
    const { name = environmentName(key), text = setting.fallback ?? '' } = found ?? {};
    if (found?.isUnreadable) continue;
    const isRequired = Array.isArray(setting.required)
      ? setting.required.some((one: Target) => targets.has(one))
      : setting.required === true;
    if (isRequired && !text) problems.push(`${environmentName(key)} is required: ${setting.help}`);
    else values[key] = parse(name, setting, text, problems);
  }
  values['targets'] = targets;
  values['addresses'] = attempt(
    'KELLET_SERVICE_ADDRESSES',
    () => parseAddresses(values['serviceAddresses'] as string, remoteTargets(targets)),
    new Map(),
  );
  const config = values as unknown as Config;
  if (problems.length === 0) problems.push(...s3Problems(config), ...tlsProblems(config), ...unsafeProblems(config));
  return { config, problems };
}

/** Returns a line for each environment variable that looks like a setting but is not, with the nearest setting. */
export function unknownSettings(environment: Environment): string[] {
  return unknownVariables(environment, knownVariables).map(
    (name) => `${name} is not a setting; did you mean ${nearestName(name, knownVariables)}?`,
  );
}

const knownVariables: ReadonlySet<string> = new Set([
  configVariable,
  ...Object.keys(settings).flatMap((key) => [environmentName(key), `${environmentName(key)}_FILE`]),
]);

/** The keys of the file: every setting, and for a secret also that of a file with it. */
const fileKeys: ReadonlySet<string> = new Set(
  Object.entries<Setting>(settings).flatMap(([key, { secret }]) => (secret ? [key, `${key}File`] : [key])),
);

interface Sources {
  readonly flags: ReadonlyMap<string, string>;
  readonly environment: Environment;
  readonly file: ConfigFile['values'];
  readonly path: string;
}

function openSources(environment: Environment, flags: readonly string[], problems: string[]): Sources {
  const given = parseFlags(flags, problems);
  const path = given.get(configFlag) ?? environment[configVariable] ?? '';
  if (path === '') return { flags: given, environment, file: new Map(), path };
  const file = readConfigFile(path, fileKeys);
  problems.push(...file.problems);
  return { flags: given, environment, file: file.values, path };
}

/** The text of a setting and where it comes from, for messages. */
interface Found {
  readonly name: string;
  readonly text: string;
  readonly isUnreadable?: boolean;
}

function textOf(key: string, { flags, environment, file, path }: Sources, problems: string[]): Found | undefined {
  const flag = flags.get(key);
  if (flag !== undefined) return { name: flagName(key), text: flag };
  const name = environmentName(key);
  const text = isServiceLink(environment, name) ? undefined : environment[name];
  if (text !== undefined) return { name, text };
  if (environment[`${name}_FILE`]) return readSecret(`${name}_FILE`, environment[`${name}_FILE`]!, problems);
  const inFile = file.get(key);
  if (inFile !== undefined) return { name: `${path}: ${key}`, text: inFile };
  const secretFile = file.get(`${key}File`);
  return secretFile === undefined ? undefined : readSecret(`${path}: ${key}File`, secretFile, problems);
}

function readSecret(name: string, path: string, problems: string[]): Found {
  try {
    return { name, text: readFileSync(path, 'utf8').trim() };
  } catch (error) {
    problems.push(`${name}: ${(error as Error).message}`);
    return { name, text: '', isUnreadable: true };
  }
}

/** Returns the help text of the settings, one per line. */
export function configHelp(): string {
  const rows = [
    [configFlag, configVariable, configHelpText] as const,
    ...Object.entries<Setting>(settings).map(([key, setting]) => {
      const choices = Array.isArray(setting.type) ? setting.type.join(', ') : '';
      const fallback = setting.fallback ? `default ${setting.fallback}` : '';
      const values = [choices, fallback].filter(Boolean).join('; ');
      const help = `${setting.help}${values ? ` (${values})` : ''}`;
      return [setting.secret ? '' : flagName(key), environmentName(key), help] as const;
    }),
  ];
  const [flags, variables] = [0, 1].map((column) => Math.max(...rows.map((row) => row[column]!.length)));
  return rows
    .map(([flag, variable, help]) => `  ${flag.padEnd(flags!)} ${variable.padEnd(variables!)} ${help}`)
    .join('\n');
}

/** Returns the values of flags by setting, and that of `--config` by its name. */
function parseFlags(flags: readonly string[], problems: string[]): Map<string, string> {
  const given = new Map<string, string>();
  for (let index = 0; index < flags.length; index += 1) {
    const [flag = '', inline] = splitOnce(flags[index]!, '=');
    const key = keysByFlag.get(flag);
    const next = flags[index + 1];
    // What follows an unknown flag may be its value, perhaps a secret that must not be shown.
    const isTaken = inline === undefined && flag.startsWith('--') && (key !== undefined || !next?.startsWith('--'));
    if (isTaken) index += 1;
    const value = inline ?? next;
    if (key === undefined) problems.push(unknownFlag(flag));
    else if (value === undefined) problems.push(`${flag} needs a value`);
    else given.set(key, value);
  }
  return given;
}

const keysByFlag: ReadonlyMap<string, string> = new Map([
  [configFlag, configFlag],
  ...Object.entries<Setting>(settings).flatMap(([key, { secret }]) => (secret ? [] : [[flagName(key), key] as const])),
]);

function unknownFlag(flag: string): string {
  const secret = Object.entries<Setting>(settings).find(([key, setting]) => setting.secret && flagName(key) === flag);
  // Arguments of processes are visible to others on the machine.
  if (secret) return `${flag} is a secret: use ${environmentName(secret[0])} or ${environmentName(secret[0])}_FILE`;
  if (!flag.startsWith('--')) return 'every argument must be a flag, or the value of one';
  return `unknown flag ${flag}; did you mean ${nearestName(flag, keysByFlag.keys())}?`;
}

function splitOnce(text: string, separator: string): [string, string | undefined] {
  const at = text.indexOf(separator);
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)];
}

function parse(name: string, setting: Setting, text: string, problems: string[]): unknown {
  if (setting.type === 'integer') {
    const { minimum = 0, maximum = 999_999_999 } = setting;
    const value = Number(text);
    if (!/^\d{1,10}$/.test(text)) problems.push(`${name} must be a whole number`);
    else if (value < minimum || value > maximum) problems.push(`${name} must be from ${minimum} to ${maximum}`);
    return value;
  }
  if (setting.type === 'number') {
    const { minimum = 0, maximum = Infinity } = setting;
    const value = Number(text);
    if (!/^\d{1,10}(\.\d{1,10})?$/.test(text)) problems.push(`${name} must be a number`);
    else if (value < minimum || value > maximum) problems.push(`${name} must be from ${minimum} to ${maximum}`);
    return value;
  }
  if (setting.type === 'boolean') {
    if (!['true', 'false', '1', '0'].includes(text)) problems.push(`${name} must be true or false`);
    return text === 'true' || text === '1';
  }
  if (setting.type === 'origin') return parseOrigin(name, text, problems);
  if (setting.type === 'ranges') {
    const ranges = text.split(',').map((range) => range.trim());
    const wrong = ranges.find((range) => range !== '' && !isRange(range));
    if (wrong !== undefined) problems.push(`${name}: ${JSON.stringify(wrong)} is not an address or CIDR range`);
  }
  if (setting.type === 'hosts') {
    try {
      parseOutboundHosts(text);
    } catch (error) {
      problems.push(`${name}: ${(error as Error).message}`);
    }
  }
  if (setting.type === 'broker') {
    try {
      parseBrokerServers(text);
    } catch (error) {
      problems.push(`${name} ${(error as Error).message}`);
    }
  }
  if (setting.type === 'store' && text !== 'postgres') {
    const problem = storeProblem(text);
    if (problem !== undefined) problems.push(`${name} must be postgres, or ${problem.replace(/^must /, '')}`);
  }
  if (setting.type === 'storeUrl' && text !== '') {
    const problem = storeProblem(text);
    if (problem !== undefined) problems.push(`${name} ${problem}`);
  }
  if (setting.type === 'tenants') {
    const tenants = text.split(',').map((tenantId) => tenantId.trim());
    const wrong = tenants.find((tenantId) => !/^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$/.test(tenantId));
    if (wrong !== undefined) problems.push(`${name}: ${JSON.stringify(wrong)} is not a tenant id`);
  }
  if (setting.shortest !== undefined && text.length < setting.shortest) {
    problems.push(`${name} must have at least ${setting.shortest} characters`);
  }
  if (typeof setting.type !== 'string' && !setting.type.includes(text)) {
    problems.push(`${name} must be one of ${setting.type.join(', ')}`);
  }
  return text;
}

/** Parses an origin in the form of browsers: lower case, no path, no default port. */
function parseOrigin(name: string, text: string, problems: string[]): string {
  if (text === '') return text;
  const url = URL.parse(text);
  if (url && /^https?:$/.test(url.protocol) && url.href === `${url.origin}/`) return url.origin;
  problems.push(`${name} must be an origin, such as https://dashboard.example.org`);
  return text;
}

/** Returns how to reach the S3 service. */
export const s3SettingsOf = (config: Config): S3Settings => ({
  endpoint: config.s3Endpoint,
  region: config.s3Region,
  accessKey: config.s3AccessKey,
  secretKey: config.s3SecretKey,
});

/** Returns what is missing or wrong in the settings of S3. */
function s3Problems(config: Config): string[] {
  const { s3Endpoint, s3AccessKey, s3SecretKey } = config;
  const url = URL.parse(s3Endpoint);
  return [
    ...(s3Endpoint !== '' && !(url && /^https?:$/.test(url.protocol) && url.search === '' && url.username === '')
      ? ['KELLET_S3_ENDPOINT must be an http or https URL']
      : []),
    ...((s3AccessKey === '') !== (s3SecretKey === '')
      ? ['KELLET_S3_ACCESS_KEY and KELLET_S3_SECRET_KEY must be given together']
      : []),
    ...(config.artifactStore.startsWith('s3://') && s3AccessKey === ''
      ? ['KELLET_ARTIFACT_STORE in S3 needs KELLET_S3_ACCESS_KEY and KELLET_S3_SECRET_KEY']
      : []),
    ...(config.coldUrl.startsWith('s3://') && s3AccessKey === ''
      ? ['KELLET_COLD_URL in S3 needs KELLET_S3_ACCESS_KEY and KELLET_S3_SECRET_KEY']
      : []),
  ];
}

/** Returns what is missing or wrong in the settings of TLS. */
function tlsProblems(config: Config): string[] {
  const { tlsCertFile, tlsKeyFile, restTls, grpcTls, clientCertificateHeader, trustedProxies } = config;
  const control = [config.controlTlsCertFile, config.controlTlsKeyFile, config.controlTlsCaFile];
  return [
    ...(new Set(control.map((file) => file === '')).size === 1
      ? []
      : [
          'KELLET_CONTROL_TLS_CERT_FILE, KELLET_CONTROL_TLS_KEY_FILE and KELLET_CONTROL_TLS_CA_FILE must be given together',
        ]),
    ...((tlsCertFile === '') === (tlsKeyFile === '')
      ? []
      : ['KELLET_TLS_CERT_FILE and KELLET_TLS_KEY_FILE must be given together']),
    ...((restTls || grpcTls) && tlsCertFile === ''
      ? ['KELLET_REST_TLS and KELLET_GRPC_TLS need KELLET_TLS_CERT_FILE and KELLET_TLS_KEY_FILE']
      : []),
    ...(/^[a-zA-Z0-9-]{0,64}$/.test(clientCertificateHeader)
      ? []
      : ['KELLET_CLIENT_CERTIFICATE_HEADER must be the name of a header']),
    ...(clientCertificateHeader !== '' && trustedProxies === ''
      ? ['KELLET_CLIENT_CERTIFICATE_HEADER needs KELLET_TRUSTED_PROXIES']
      : []),
  ];
}

/** Settings that weaken security are allowed only on a local network outside production. */
const unsafeProblems = (config: Config): string[] => [
  ...(config.callbackSkipValidation && (config.network !== 'local' || config.environment === 'production')
    ? ['KELLET_CALLBACK_SKIP_VALIDATION is only for the local network outside production']
    : []),
  ...(config.fundingUrl !== '' && config.network !== 'local'
    ? ['KELLET_FUNDING_URL is only for the local network']
    : []),
];

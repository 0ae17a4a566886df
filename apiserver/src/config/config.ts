// The configuration of kellet-apiserver: one table from which environment, flags and help are read.
import { readFileSync } from 'node:fs';
import { isRange } from '../platform/address-ranges.ts';
import { parseOutboundHosts } from '../platform/outbound/outbound-addresses.ts';
import { allTargets, parseAddresses, parseTargets, remoteTargets, type Target } from './targets.ts';

/** Who answers calls that page or signs tokens; the gateway alone holds no key of its own. */
const services = allTargets.filter((target) => target !== 'gateway' && target !== 'dashboard-bff');

interface Setting {
  readonly type: 'string' | 'integer' | 'boolean' | 'origin' | 'ranges' | 'hosts' | 'tenants' | readonly string[];
  /** Bounds of an integer. */
  readonly minimum?: number;
  readonly maximum?: number;
  readonly fallback?: string;
  /** Never shown; may be given as a file by the name with _FILE. */
  readonly secret?: boolean;
  /** Least length, in characters. */
  readonly shortest?: number;
  /** Needed by every target, or by these. */
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
    help: 'production refuses unsafe settings',
  },
  listenHost: { type: 'string', fallback: '0.0.0.0', help: 'address to listen on' },
  restPort: { type: 'integer', fallback: '8080', help: 'REST and /ws; 0: any free port' },
  grpcPort: { type: 'integer', fallback: '9090', help: 'public gRPC' },
  controlPort: { type: 'integer', fallback: '9091', help: 'internal gRPC, for the operator and other targets' },
  metricsPort: { type: 'integer', fallback: '9464', help: '/metrics, /healthz, /readyz' },
  dashboardPort: { type: 'integer', fallback: '8081', help: 'static pages: the API reference' },
  logLevel: {
    type: ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'],
    fallback: 'info',
    help: 'least level that is logged',
  },
  accessLog: {
    type: ['off', 'errors', 'requests', 'all'],
    fallback: 'requests',
    help: 'what is logged on standard output: nothing, failures, every request but health probes, everything',
  },
  databaseUrl: { type: 'string', secret: true, required: true, help: 'PostgreSQL connection URL' },
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
  natsUrl: { type: 'string', secret: true, required: true, help: 'NATS URL' },
  controlSecret: {
    type: 'string',
    secret: true,
    required: true,
    // 32 hexadecimal digits are 128 bits: nothing that somebody could try out.
    shortest: 32,
    help: 'shared secret of the internal port, at least 32 characters',
  },
  jwtPrivateKey: {
    type: 'string',
    secret: true,
    required: services,
    help: 'Ed25519 key that signs access tokens, PKCS#8 PEM',
  },
  platformAdminEmail: { type: 'string', fallback: '', help: 'account made at start when it is missing' },
  platformAdminPassword: { type: 'string', secret: true, fallback: '', help: 'its first password' },
  dashboardOrigin: { type: 'origin', fallback: '', help: 'the only origin that gets cross-origin access' },
  trustedProxies: {
    type: 'ranges',
    fallback: '',
    help: 'addresses or CIDR ranges, separated by commas, whose X-Forwarded-For or Forwarded is believed',
  },
  publicUrl: {
    type: 'string',
    fallback: '',
    help: 'base URL of the REST API for the reference page; empty: the REST port of the host that was asked',
  },
  maximumConnections: {
    type: 'integer',
    fallback: '10000',
    help: 'connections of the REST port at a time, and of the gRPC port',
  },
  drainDelaySeconds: {
    type: 'integer',
    fallback: '0',
    help: 'seconds between being told to stop and no longer listening; not ready meanwhile',
  },
  drainSeconds: {
    type: 'integer',
    fallback: '20',
    help: 'seconds in which running requests may finish after that; what has not is cut off',
  },
  commandRetentionDays: {
    type: 'integer',
    fallback: '30',
    help: 'days for which commands to devices are kept after they have ended',
  },
  batchPoints: { type: 'integer', fallback: '1000', help: 'points after which an anchor batch is sealed' },
  batchSeconds: { type: 'integer', fallback: '30', help: 'seconds after which an anchor batch is sealed' },
  publishPoints: {
    type: 'tenants',
    fallback: '',
    help: 'tenants whose points are published on NATS, separated by commas; *: all; publish-points changes it for a tenant',
  },
  network: { type: ['main', 'test', 'local'], fallback: 'main', help: 'chain network' },
  arcUrl: { type: 'string', fallback: '', help: "base URL of the transaction processor's API" },
  arcToken: { type: 'string', secret: true, fallback: '', help: 'its bearer token' },
  headersUrl: { type: 'string', fallback: '', help: 'base URL of a ChainTracks v2 header source' },
  deepestReorganisation: {
    type: 'integer',
    fallback: '0',
    help: 'the most headers that a branch may replace; 0: 20 on main, 100 on test, no bound on local',
  },
  fundingUrl: { type: 'string', fallback: '', help: 'pays the wallet by itself; local network only' },
  walletKey: { type: 'string', secret: true, fallback: '', help: 'private key that pays for anchors, 64 hex digits' },
  callbackUrl: { type: 'string', fallback: '', help: 'URL at which the processor reaches /api/v1/callbacks/arc' },
  callbackHmacSecret: { type: 'string', secret: true, required: ['gateway'], help: 'key of X-ARC-Signature' },
  callbackSkipValidation: { type: 'boolean', fallback: 'false', help: 'accept unsigned callbacks; local network only' },
  artifactHosts: {
    type: 'hosts',
    fallback: '',
    help: 'internal servers of artifacts, separated by commas: host, *.suffix, address, each with :port or without, or CIDR',
  },
  artifactMaxBytes: {
    type: 'integer',
    fallback: '4294967295',
    minimum: 1,
    maximum: 4_294_967_295,
    help: 'greatest size of an artifact',
  },
  artifactTransfers: {
    type: 'integer',
    fallback: '32',
    minimum: 1,
    help: 'artifacts that a process fetches at a time, and as many uploads; others wait for their turn',
  },
  artifactTransfersPerTenant: {
    type: 'integer',
    fallback: '4',
    minimum: 1,
    help: "how many of them may be one tenant's",
  },
} as const satisfies Record<string, Setting>;

type Value<S extends Setting> = S['type'] extends 'integer'
  ? number
  : S['type'] extends 'boolean'
    ? boolean
    : S['type'] extends readonly (infer Choice)[]
      ? Choice
      : string;

/** The configuration, every value checked. */
export type Config = { readonly [K in keyof typeof settings]: Value<(typeof settings)[K]> } & {
  /** What `target` says. */
  readonly targets: ReadonlySet<Target>;
  /** Where the targets are that this process calls and does not run. */
  readonly addresses: ReadonlyMap<Target, string>;
};

/** KELLET_REST_PORT for restPort. */
const environmentName = (key: string): string =>
  `KELLET_${key.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`;
const flagName = (key: string): string => `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

/**
 * Reads the configuration: a flag wins over the environment, the environment over the default; a secret may be given as a
 * file (KELLET_X_FILE). Throws one Error that names every setting that is missing or wrong.
 */
export function readConfig(environment: Record<string, string | undefined>, flags: readonly string[]): Config {
  const problems: string[] = [];
  const given = parseFlags(flags, problems);
  const values: Record<string, unknown> = {};
  const attempt = <T>(name: string, read: () => T, fallback: T): T => {
    try {
      return read();
    } catch (error) {
      problems.push(`${name}: ${(error as Error).message}`);
      return fallback;
    }
  };
  const targetText = given.get('target') ?? environment['KELLET_TARGET'] ?? 'all';
  const targets = attempt('KELLET_TARGET', () => parseTargets(targetText), new Set(allTargets));
  for (const [key, setting] of Object.entries<Setting>(settings)) {
    const name = environmentName(key);
    let text = given.get(key) ?? environment[name];
    const file = environment[`${name}_FILE`];
    if (text === undefined && file) {
      try {
        text = readFileSync(file, 'utf8').trim();
      } catch (error) {
        problems.push(`${name}_FILE: ${(error as Error).message}`);
        continue;
      }
    }
    text ??= setting.fallback;
    const isRequired = Array.isArray(setting.required)
      ? setting.required.some((target: Target) => targets.has(target))
      : setting.required === true;
    if (isRequired && !text) problems.push(`${name} is required: ${setting.help}`);
    else values[key] = parse(name, setting, text ?? '', problems);
  }
  values['targets'] = targets;
  values['addresses'] = attempt(
    'KELLET_SERVICE_ADDRESSES',
    () => parseAddresses(values['serviceAddresses'] as string, remoteTargets(targets)),
    new Map(),
  );
  if (problems.length > 0) throw new Error(`configuration:\n  ${problems.join('\n  ')}`);
  const config = values as unknown as Config;
  refuseUnsafe(config);
  return config;
}

/** The help text of the settings, a line each. */
export function configHelp(): string {
  return Object.entries<Setting>(settings)
    .map(([key, setting]) => {
      const choices = Array.isArray(setting.type) ? setting.type.join(', ') : '';
      const fallback = setting.fallback ? `default ${setting.fallback}` : '';
      const values = [choices, fallback].filter(Boolean).join('; ');
      const flag = setting.secret ? '' : flagName(key);
      return `  ${flag.padEnd(30)} ${environmentName(key).padEnd(34)} ${setting.help}${values ? ` (${values})` : ''}`;
    })
    .join('\n');
}

function parseFlags(flags: readonly string[], problems: string[]): Map<string, string> {
  const given = new Map<string, string>();
  const byFlag = new Map(
    Object.entries<Setting>(settings).flatMap(([key, setting]) => (setting.secret ? [] : [[flagName(key), key]])),
  );
  for (let index = 0; index < flags.length; index += 1) {
    const [flag = '', inline] = splitOnce(flags[index]!, '=');
    const key = byFlag.get(flag);
    const value = inline ?? flags[++index];
    if (key === undefined) problems.push(`unknown flag ${flag}`);
    else if (value === undefined) problems.push(`${flag} needs a value`);
    else given.set(key, value);
  }
  return given;
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
  if (setting.type === 'boolean') {
    if (!['true', 'false', '1', '0'].includes(text)) problems.push(`${name} must be true or false`);
    return text === 'true' || text === '1';
  }
  if (setting.type === 'origin') return parseOrigin(name, text, problems);
  if (setting.type === 'ranges') {
    const ranges = text.split(',').map((range) => range.trim());
    const wrong = ranges.find((range) => range !== '' && !isRange(range));
    if (wrong !== undefined) problems.push(`${name}: ${JSON.stringify(wrong)} is no address or CIDR range`);
  }
  if (setting.type === 'hosts') {
    try {
      parseOutboundHosts(text);
    } catch (error) {
      problems.push(`${name}: ${(error as Error).message}`);
    }
  }
  if (setting.type === 'tenants') {
    const tenants = text.split(',').map((tenantId) => tenantId.trim());
    const wrong = tenants.find((tenantId) => !/^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$/.test(tenantId));
    if (wrong !== undefined) problems.push(`${name}: ${JSON.stringify(wrong)} is no tenant id`);
  }
  if (setting.shortest !== undefined && text.length < setting.shortest) {
    problems.push(`${name} must have at least ${setting.shortest} characters`);
  }
  if (typeof setting.type !== 'string' && !setting.type.includes(text)) {
    problems.push(`${name} must be one of ${setting.type.join(', ')}`);
  }
  return text;
}

/** An origin as browsers write it: lower case, no path, no default port. */
function parseOrigin(name: string, text: string, problems: string[]): string {
  if (text === '') return text;
  const url = URL.parse(text);
  if (url && /^https?:$/.test(url.protocol) && url.href === `${url.origin}/`) return url.origin;
  problems.push(`${name} must be an origin, such as https://dashboard.example.org`);
  return text;
}

/** What may be loosened on a local network must not be loosened by accident elsewhere (SPEC, callback, development mode). */
function refuseUnsafe(config: Config): void {
  const unsafe: string[] = [];
  if (config.callbackSkipValidation && (config.network !== 'local' || config.environment === 'production')) {
    unsafe.push('KELLET_CALLBACK_SKIP_VALIDATION is only for the local network outside production');
  }
  if (config.fundingUrl !== '' && config.network !== 'local')
    unsafe.push('KELLET_FUNDING_URL is only for the local network');
  if (unsafe.length > 0) throw new Error(`configuration:\n  ${unsafe.join('\n  ')}`);
}

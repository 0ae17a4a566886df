// Reads the configuration of kellet-operator from the environment. Secrets may be read from files (KELLET_X_FILE).
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import type { ControlTlsFiles } from './data-plane.ts';

/** Validated configuration. */
export interface Config {
  /** Path of a kubeconfig. If undefined, the pod's own credentials are used, else kubectl's default. */
  kubeconfig: string | undefined;
  /** Address (host:port) of the data plane's control service. */
  controlAddress: string;
  controlSecret: string;
  /** PEM files for TLS to the control service, and the authority of both sides; undefined without TLS. */
  controlTls: ControlTlsFiles | undefined;
  listenHost: string;
  metricsPort: number;
  leaderElection: boolean;
  /** The operator's own namespace, for the Lease and for passwords that Tenants refer to. */
  leaseNamespace: string;
  /** ClusterRole for Secrets that the operator binds to itself in tenants' namespaces. */
  tenantRole: string;
  logLevel: string;
  /** Milliseconds between drift checks. */
  driftCheckMilliseconds: number;
  /**
   * Identity in the Lease and in Events. KELLET_IDENTITY names a place that runs one process at a time (a pod): a
   * process restarted there is the successor of the dead holder, and leads without waiting for the lease to expire.
   */
  identity: string;
}

type Environment = Record<string, string | undefined>;

/** Minimum length of the shared secret: 32 hexadecimal digits are 128 bits. */
const minSecret = 32;

const levels = ['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'];
const namespaceFile = '/var/run/secrets/kubernetes.io/serviceaccount/namespace';

/** Reads the configuration. Throws a single Error that lists everything missing or invalid. */
export function readConfig(environment: Environment, uniqueId: string): Config {
  const problems: string[] = [];
  const controlAddress = environment['KELLET_CONTROL_ADDRESS'] ?? '';
  if (!/^.+:\d+$/.test(controlAddress)) problems.push('KELLET_CONTROL_ADDRESS must be host:port of the data plane');
  const controlSecret = readSecret(environment, 'KELLET_CONTROL_SECRET', problems);
  const certFile = environment['KELLET_CONTROL_TLS_CERT_FILE'] ?? '';
  const keyFile = environment['KELLET_CONTROL_TLS_KEY_FILE'] ?? '';
  const caFile = environment['KELLET_CONTROL_TLS_CA_FILE'] ?? '';
  const isTls = certFile !== '' || keyFile !== '' || caFile !== '';
  if (isTls && (certFile === '' || keyFile === '' || caFile === '')) {
    problems.push(
      'KELLET_CONTROL_TLS_CERT_FILE, KELLET_CONTROL_TLS_KEY_FILE and KELLET_CONTROL_TLS_CA_FILE must be given together',
    );
  }
  const port = environment['KELLET_METRICS_PORT'] ?? '9464';
  if (!/^\d{1,5}$/.test(port)) problems.push('KELLET_METRICS_PORT must be a port number');
  const election = environment['KELLET_LEADER_ELECTION'] ?? 'true';
  if (!['true', 'false', '1', '0'].includes(election)) problems.push('KELLET_LEADER_ELECTION must be true or false');
  const logLevel = environment['KELLET_LOG_LEVEL'] ?? 'info';
  if (!levels.includes(logLevel)) problems.push(`KELLET_LOG_LEVEL must be one of ${levels.join(', ')}`);
  const driftCheck = Number(environment['KELLET_DRIFT_CHECK_SECONDS'] || '60');
  if (!(driftCheck >= 0.1 && driftCheck <= 86_400)) {
    problems.push('KELLET_DRIFT_CHECK_SECONDS must be a number from 0.1 to 86400');
  }
  if (problems.length > 0) throw new Error(`configuration:\n  ${problems.join('\n  ')}`);
  return {
    kubeconfig: environment['KUBECONFIG'] || undefined,
    controlAddress,
    controlSecret,
    controlTls: isTls ? { certFile, keyFile, caFile } : undefined,
    listenHost: environment['KELLET_LISTEN_HOST'] || '0.0.0.0',
    metricsPort: Number(port),
    leaderElection: election === 'true' || election === '1',
    leaseNamespace: environment['KELLET_LEASE_NAMESPACE'] || ownNamespace() || 'kellet-system',
    tenantRole: environment['KELLET_TENANT_ROLE'] || 'kellet-operator-tenant',
    logLevel,
    driftCheckMilliseconds: driftCheck * 1000,
    identity: environment['KELLET_IDENTITY'] || `${hostname()}_${uniqueId}`,
  };
}

function readSecret(environment: Environment, name: string, problems: string[]): string {
  const file = environment[`${name}_FILE`];
  let text = environment[name] ?? '';
  if (text === '' && file) {
    try {
      text = readFileSync(file, 'utf8').trim();
    } catch (error) {
      problems.push(`${name}_FILE: ${(error as Error).message}`);
      return '';
    }
  }
  if (text === '') problems.push(`${name} is required: the secret shared by operator and data plane`);
  else if (text.length < minSecret) problems.push(`${name} must have at least ${minSecret} characters`);
  return text;
}

function ownNamespace(): string | undefined {
  try {
    return readFileSync(namespaceFile, 'utf8').trim();
  } catch {
    return undefined;
  }
}

// How long the operator takes to fail over: two operators run against an installation, the one that leads is killed, and the other one
// has to lead and to have looked at every resource. The Kubernetes API is real, and the same for both installations, so that only what
// they have stored can make a difference.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { apiVersion, tenantLabel } from '@kellet/crds';
import { Manifests } from '../../../dev/stack/cluster/manifests.ts';
import { openResources, systemNamespace } from '../../../dev/stack/cluster/resources.ts';
import { findFreePorts } from '../../../dev/stack/ports/free-ports.ts';
import { startKubernetes } from '../../../dev/stack/stack.ts';
import type { Environment } from '../environment.ts';
import { inParallel } from '../operator/resources.ts';

const main = join(import.meta.dirname, '../../../operator/src/main.ts');
const tenant = 'fail-over';
const profiles = 300;
/** The tenant and its profiles. */
const resources = 1 + profiles;
const patienceMilliseconds = 120_000;

/** How long a fail-over took. */
export interface FailOverTimes {
  /** Milliseconds from the end of the leading operator until another one leads and has looked at everything. */
  readonly total: number;
  /** Of these, the milliseconds after it leads: the rest is mostly the time for which a lease lasts. */
  readonly look: number;
}

/** A Kubernetes API with the resources of a tenant. */
export interface FailOver {
  /** Lets the operator of an installation fail over once. */
  time(environment: Environment): Promise<FailOverTimes>;
  close(): Promise<void>;
}

/** Starts the Kubernetes API and creates the resources. */
export async function openFailOver(report: (line: string) => void): Promise<FailOver> {
  const stateFolder = await mkdtemp(join(tmpdir(), 'kellet-year-'));
  const kubernetes = await startKubernetes({ stateFolder, report });
  const { kubeconfig } = kubernetes;
  const close = async () => {
    await kubernetes.stop();
    await rm(stateFolder, { recursive: true, force: true });
  };
  try {
    const cluster = openResources(kubeconfig);
    await cluster.applyNamespace(systemNamespace);
    const client = new Manifests(kubeconfig);
    await client.apply({
      ...{ apiVersion: 'v1', kind: 'Namespace' },
      metadata: { name: tenant, labels: { [tenantLabel]: tenant } },
    });
    await client.apply({ apiVersion, kind: 'Tenant', metadata: { name: tenant }, spec: { namespace: tenant } });
    const names = Array.from({ length: profiles }, (_, index) => `profile-${index}`);
    await inParallel(names, 8, (name) =>
      client.apply({
        apiVersion,
        kind: 'DeviceProfile',
        metadata: { name, namespace: tenant },
        spec: { type: 'year' },
      }),
    );
    return { time: (environment) => timeOfFailOver(environment, kubeconfig), close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function timeOfFailOver(environment: Environment, kubeconfig: string): Promise<FailOverTimes> {
  const operators: Operator[] = [];
  try {
    for (let n = 0; n < 2; n += 1) operators.push(await Operator.start(environment, kubeconfig));
    const leading = await until(async () => {
      for (const operator of operators) if (await operator.hasLooked()) return operator;
      return undefined;
    });
    const other = operators.find((operator) => operator !== leading)!;
    await until(() => other.isReady());
    const started = performance.now();
    await leading.end('SIGKILL');
    await until(() => other.leads());
    const led = performance.now();
    await until(() => other.hasLooked());
    const ended = performance.now();
    return { total: ended - started, look: ended - led };
  } finally {
    // Releases the lease for the next ones.
    for (const operator of operators) await operator.end('SIGTERM');
  }
}

/** Looks until there is something. Returns it. */
async function until<T>(look: () => Promise<T | false | undefined>): Promise<T> {
  const deadline = performance.now() + patienceMilliseconds;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > deadline) throw new Error('no operator leads and has looked at everything');
    await sleep(20);
  }
}

/** A process of kellet-operator. */
class Operator {
  private readonly child: ChildProcess;
  private readonly ended: Promise<unknown>;
  private readonly url: string;
  private hasBeenEnded = false;

  private constructor(child: ChildProcess, port: number) {
    this.child = child;
    this.ended = once(child, 'exit');
    this.url = `http://127.0.0.1:${port}`;
  }

  static async start({ settings }: Environment, kubeconfig: string): Promise<Operator> {
    const { metrics } = await findFreePorts('metrics');
    const own = {
      KUBECONFIG: kubeconfig,
      KELLET_CONTROL_ADDRESS: `127.0.0.1:${settings['KELLET_CONTROL_PORT']}`,
      KELLET_CONTROL_SECRET_FILE: settings['KELLET_CONTROL_SECRET_FILE'],
      KELLET_LISTEN_HOST: '127.0.0.1',
      KELLET_METRICS_PORT: String(metrics),
      KELLET_LEASE_NAMESPACE: systemNamespace,
      // The tenants of the installation have no resources here.
      KELLET_DRIFT_CHECK_SECONDS: '86400',
      KELLET_LOG_LEVEL: 'error',
    };
    const env = { ...process.env, ...own };
    return new Operator(spawn(process.execPath, [main], { env, stdio: ['ignore', 'ignore', 'inherit'] }), metrics);
  }

  async isReady(): Promise<boolean> {
    return (await this.get('/readyz')) !== undefined;
  }

  async leads(): Promise<boolean> {
    return (await this.sum('leader_election_master_status')) === 1;
  }

  /** Reports whether it has reconciled as many resources as there are, and has none left to reconcile. */
  async hasLooked(): Promise<boolean> {
    const reconciled = await this.sum('controller_runtime_reconcile_total', 'result="success"');
    return (
      reconciled >= resources &&
      (await this.sum('workqueue_depth')) + (await this.sum('controller_runtime_active_workers')) === 0
    );
  }

  async end(signal: NodeJS.Signals): Promise<void> {
    this.hasBeenEnded = true;
    this.child.kill(signal);
    await this.ended;
  }

  /** Returns the sum of the series of a metric with a label; 0 if it does not respond. */
  private async sum(metric: string, label = ''): Promise<number> {
    const lines = ((await this.get('/metrics')) ?? '').split('\n');
    const values = lines.filter((line) => line.startsWith(`${metric}{`) && line.includes(label));
    return values.reduce((total, line) => total + Number(line.slice(line.lastIndexOf(' '))), 0);
  }

  /** Returns a page of its metrics port, or undefined if it does not respond or is not well. */
  private async get(path: string): Promise<string | undefined> {
    if (this.child.exitCode !== null && !this.hasBeenEnded)
      throw new Error(`an operator has ended with ${this.child.exitCode}`);
    try {
      const response = await fetch(`${this.url}${path}`);
      const text = await response.text();
      return response.ok ? text : undefined;
    } catch {
      return undefined;
    }
  }
}

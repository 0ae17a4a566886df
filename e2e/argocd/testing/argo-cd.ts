// The real Argo CD without its user interface: its controllers and repository server as processes of this machine, against any
// cluster, with the settings that docs/gitops.md asks for.
import { randomBytes } from 'node:crypto';
import { mkdir, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { Kubectl } from '../../../dev/clients/kubectl.ts';
import { checkout } from '../../../dev/stack/paths.ts';
import { findFreePorts } from '../../../dev/stack/ports/free-ports.ts';
import { httpStatus } from '../../../dev/stack/processes/probe.ts';
import { createSupervisor, type Supervisor } from '../../../dev/stack/processes/supervisor.ts';
import { argocdProgram, helmProgram, kubectlProgram } from '../../../dev/stack/programs/binaries.ts';
import { moduleFiles, type Report } from '../../../dev/stack/programs/go-build.ts';
import { redisServerProgram } from '../../../dev/stack/programs/redis-server.ts';
import { waitUntil } from '../../../dev/stack/wait.ts';
import { argocdModule, installForeignDefinitions } from '../../testing/foreign-definitions.ts';

const namespace = 'argocd';

/** What Argo CD says about an Application. */
export interface ApplicationStatus {
  sync?: { status: 'Synced' | 'OutOfSync' | 'Unknown'; revision?: string };
  health?: { status: string };
  conditions?: { type: string; message: string }[];
  operationState?: {
    phase: string;
    message?: string;
    finishedAt?: string;
    syncResult?: { revision: string; resources?: { kind: string; name: string; status: string; message: string }[] };
  };
  resources?: {
    kind: string;
    name: string;
    status?: string;
    health?: { status: string; message?: string };
  }[];
  history?: { revision: string }[];
}

/** A running Argo CD. */
export class ArgoCd {
  /** kubectl in Argo CD's namespace. */
  readonly kubectl: Kubectl;
  private readonly supervisor: Supervisor;

  private constructor(kubectl: Kubectl, supervisor: Supervisor) {
    this.kubectl = kubectl;
    this.supervisor = supervisor;
  }

  /** Starts it for the cluster of a kubeconfig. `folder` holds its state and logs, and is removed first. */
  static async start(kubeconfig: string, folder: string, report: Report): Promise<ArgoCd> {
    const [argocd, helm, redis, kubectlPath] = [
      await argocdProgram(report),
      await helmProgram(report),
      await redisServerProgram(report),
      await kubectlProgram(report),
    ];
    await rm(folder, { recursive: true, force: true });
    const programs = join(folder, 'programs');
    for (const each of ['programs', 'tls', 'ssh', 'gpg', 'plugins'])
      await mkdir(join(folder, each), { recursive: true });
    // One program contains all components, and its name selects one.
    const components = ['argocd-repo-server', 'argocd-application-controller', 'argocd-applicationset-controller'];
    for (const name of components) await symlink(argocd, join(programs, name));
    await symlink(helm, join(programs, 'helm'));
    const kubectl = new Kubectl(kubectlPath, kubeconfig, namespace);
    await installForeignDefinitions(kubectl);
    await applySettings(kubectl);

    const supervisor = createSupervisor({
      recordsFolder: join(folder, 'run'),
      logsFolder: join(folder, 'logs'),
      report,
    });
    const ports = await findFreePorts(
      ...(['redis', 'repository', 'repositoryMetrics', 'controllerMetrics'] as const),
      ...(['setMetrics', 'setProbe', 'setWebhook'] as const),
    );
    const environment = {
      KUBECONFIG: kubeconfig,
      PATH: `${programs}:${process.env.PATH}`,
      ARGOCD_GPG_ENABLED: 'false',
      ARGOCD_TLS_DATA_PATH: join(folder, 'tls'),
      ARGOCD_SSH_DATA_PATH: join(folder, 'ssh'),
      // https://kubernetes.default.svc is the cluster of the kubeconfig.
      ARGOCD_FAKE_IN_CLUSTER: 'true',
      TMPDIR: folder,
    };
    const local = (port: number): string => `127.0.0.1:${port}`;
    const start = (name: string, args: string[], metrics: number, path = '/healthz') =>
      supervisor.start({
        name,
        command: join(programs, name),
        args,
        environment,
        isReady: async () => (await httpStatus(`http://${local(metrics)}${path}`)) === 200,
      });
    try {
      await supervisor.start({
        name: 'redis',
        command: redis,
        args: ['--port', String(ports.redis), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'],
        isReady: async () => true,
      });
      await start(
        'argocd-repo-server',
        [
          ...['--redis', local(ports.redis), '--address', '127.0.0.1', '--port', String(ports.repository)],
          ...['--metrics-address', '127.0.0.1', '--metrics-port', String(ports.repositoryMetrics), '--disable-tls'],
          // What a branch points to is asked again at each refresh.
          ...['--revision-cache-expiration', '1s'],
        ],
        ports.repositoryMetrics,
      );
      await start(
        'argocd-application-controller',
        [
          ...['--kubeconfig', kubeconfig, '--namespace', namespace, '--redis', local(ports.redis)],
          ...['--repo-server', local(ports.repository), '--repo-server-plaintext'],
          ...['--metrics-port', String(ports.controllerMetrics), '--persist-resource-health'],
          ...['--app-resync', '5', '--app-resync-jitter', '0', '--self-heal-timeout-seconds', '1'],
        ],
        ports.controllerMetrics,
      );
      await start(
        'argocd-applicationset-controller',
        [
          ...['--kubeconfig', kubeconfig, '--namespace', namespace],
          ...['--argocd-repo-server', local(ports.repository), '--repo-server-plaintext'],
          ...['--metrics-addr', local(ports.setMetrics), '--probe-addr', local(ports.setProbe)],
          ...['--webhook-addr', local(ports.setWebhook)],
        ],
        ports.setMetrics,
        '/metrics',
      );
    } catch (error) {
      await supervisor.stopAll();
      throw error;
    }
    return new ArgoCd(kubectl, supervisor);
  }

  /** Returns the status of an Application, with the reason if it could not be compared. */
  async status(name: string): Promise<ApplicationStatus> {
    return (await this.kubectl.json<{ status?: ApplicationStatus }>(['get', 'application', name])).status ?? {};
  }

  /** Asks for a comparison with what the repository has now. */
  async refresh(name: string): Promise<void> {
    await this.kubectl.run([...['annotate', '--overwrite', 'application', name], 'argocd.argoproj.io/refresh=normal']);
  }

  /** Waits for a status of an Application; a failure names the last one. */
  async until(name: string, what: string, check: (status: ApplicationStatus) => boolean): Promise<ApplicationStatus> {
    let last: ApplicationStatus = {};
    await waitUntil(
      async () => {
        last = await this.status(name);
        if (check(last)) return true;
        const { sync, health, operationState, conditions = [], resources = [] } = last;
        throw new Error(
          [
            `${sync?.status} ${sync?.revision}, ${health?.status}, ${operationState?.phase} ${operationState?.message ?? ''}`,
            ...conditions.map(({ type, message }) => `${type}: ${message}`),
            ...resources.map(
              (one) => `${one.kind} ${one.name} ${one.status} ${one.health?.status ?? ''} ${one.health?.message ?? ''}`,
            ),
          ].join('\n'),
        );
      },
      { what: `${what} in the Application ${name}`, timeoutMilliseconds: 300_000 },
    );
    return last;
  }

  /** Waits until an Application has applied a commit completely. */
  async synced(name: string, commit: string): Promise<ApplicationStatus> {
    await this.refresh(name);
    return this.until(
      name,
      `commit ${commit}`,
      ({ sync, operationState }) =>
        sync?.status === 'Synced' &&
        sync.revision === commit &&
        operationState?.phase === 'Succeeded' &&
        operationState.syncResult?.revision === commit,
    );
  }

  async stop(): Promise<void> {
    await this.supervisor.stopAll();
  }
}

/** Applies Argo CD's default settings and those of docs/gitops.md. */
async function applySettings(kubectl: Kubectl): Promise<void> {
  await kubectl.apply({ apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } });
  const folder = join(await moduleFiles(argocdModule), 'manifests/base/config');
  const files = ['cm', 'cmd-params-cm', 'gpg-keys-cm', 'rbac-cm', 'secret', 'ssh-known-hosts-cm', 'tls-certs-cm'];
  for (const file of files) await kubectl.run(['apply', '--filename', join(folder, `argocd-${file}.yaml`)]);
  const key = { stringData: { 'server.secretkey': randomBytes(24).toString('hex') } };
  await kubectl.run(['patch', 'secret', 'argocd-secret', '--patch', JSON.stringify(key)]);
  const checks = join(checkout, 'charts/kellet/argocd/argocd-cm.yaml');
  await kubectl.run(['patch', 'configmap', 'argocd-cm', '--patch-file', checks]);
  // Otherwise the API server of Argo CD creates it.
  await kubectl.apply({
    apiVersion: 'argoproj.io/v1alpha1',
    kind: 'AppProject',
    metadata: { name: 'default' },
    spec: {
      sourceRepos: ['*'],
      destinations: [{ namespace: '*', server: '*' }],
      clusterResourceWhitelist: [{ group: '*', kind: '*' }],
    },
  });
}

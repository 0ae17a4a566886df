// A Kubernetes cluster of one node with real pods, from programs built here and Debian's containerd: for machines without a
// container engine. It needs root and changes the machine's network while it runs: start only one per machine, and only
// where that disturbs nobody (docs/decisions/0052).
import { execFile } from 'node:child_process';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { stringify } from 'yaml';
import { Kubectl } from '../../clients/kubectl.ts';
import { type CertificateRequest, openCertificateAuthority } from '../cluster/certificates.ts';
import { issueCredential, startScheduler } from '../cluster/components.ts';
import { startControlPlane } from '../cluster/control-plane.ts';
import { findFreePorts } from '../ports/free-ports.ts';
import { lock, tryLock } from '../processes/file-lock.ts';
import { httpStatus } from '../processes/probe.ts';
import { endRecordedProcesses } from '../processes/process-table.ts';
import { createSupervisor, type Supervisor } from '../processes/supervisor.ts';
import { controlPlanePrograms, findOnPath, kubectlProgram, nodePrograms } from '../programs/binaries.ts';
import type { Report } from '../programs/go-build.ts';
import { waitUntil } from '../wait.ts';
import { type ContainerRuntime, endAbandonedContainers, startContainerRuntime } from './container-runtime.ts';
import { createNetwork, gateway, podRange, removeNetwork } from './network.ts';

const execute = promisify(execFile);
const nodeName = 'node';

/** Held while the node runs, by all checkouts of this machine. */
const lockFile = '/run/kellet-node.lock';

/** Held while packages are installed, by all checkouts of this machine. */
const packagesLockFile = '/run/kellet-packages.lock';

/** How long to wait for other users of Debian's package manager. */
const packageManagerSeconds = 300;

/** What Debian provides. */
const packages = ['containerd', 'runc', 'containernetworking-plugins', 'iptables', 'conntrack', 'iproute2'];

/** A cluster with real pods. */
export interface NodeCluster {
  kubeconfig: string;
  kubectl: Kubectl;
  /** Address of this machine that pods reach. */
  gateway: string;
  supervisor: Supervisor;
  /** Path of containerd's socket. */
  containerSocket: string;
  /** Loads an image from an OCI layout in a tar file. */
  readonly importImage: (file: string) => Promise<void>;
  /** Removes all pods, stops everything and removes the state. Nothing is left running. May be called repeatedly. */
  readonly stop: () => Promise<void>;
}

/** Installs what is missing from Debian's packages. */
async function installPackages(report: Report): Promise<void> {
  if (process.platform !== 'linux' || process.getuid?.() !== 0)
    throw new Error('real pods need root on Linux, or a container engine with kind');
  // Another checkout may be installing them: programs are on PATH before their packages are complete.
  const release = await lock(packagesLockFile, (seconds) => {
    if (seconds > 0) report(`waiting for another checkout to install packages (${seconds} s)`);
  });
  try {
    if ((await findOnPath('containerd')) && (await findOnPath('conntrack'))) return;
    if (!(await findOnPath('apt-get'))) throw new Error(`install ${packages.join(', ')} first`);
    report(`installing ${packages.join(', ')}`);
    const options = {
      env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    };
    const wait = ['-qq', '-o', `DPkg::Lock::Timeout=${packageManagerSeconds}`];
    await execute('apt-get', ['update', ...wait], options);
    await execute('apt-get', ['install', ...wait, '--no-install-recommends', ...packages], options);
  } finally {
    release();
  }
}

/** Unmounts what the kubelet and containerd have mounted below `folder`, the last first. */
async function unmount(folder: string): Promise<void> {
  const mounts = (await readFile('/proc/mounts', 'utf8')).split('\n').map((line) => line.split(' ')[1] ?? '');
  for (const path of mounts.filter((mounted) => mounted.startsWith(`${folder}/`)).toReversed()) {
    await execute('umount', [path]).catch(() => undefined);
  }
}

/** Starts the cluster. `folder` holds its state, which is removed first. */
export async function startNodeCluster(folder: string, report: Report): Promise<NodeCluster> {
  await installPackages(report);
  const [controlPlane, programs, kubectlPath] = [
    await controlPlanePrograms(report, undefined, undefined),
    await nodePrograms(report),
    await kubectlProgram(report),
  ];
  // A second one would take away the first one's bridge and containers.
  let release = tryLock(lockFile);
  if (!release) throw new Error('another cluster with real pods is running on this machine, which can have only one');
  const recordsFolder = join(folder, 'run');
  await endRecordedProcesses(recordsFolder);
  await endAbandonedContainers(folder);
  await removeNetwork(folder, programs.kubeProxy);
  await unmount(folder);
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const supervisor = createSupervisor({ recordsFolder, logsFolder: join(folder, 'logs'), report });
  let runtime: ContainerRuntime | undefined;
  let kubectl: Kubectl | undefined;
  const stop = async (): Promise<void> => {
    // The kubelet then removes their containers, mounts and network interfaces.
    const pods = ['delete', 'pods', '--all', '--all-namespaces', '--force', '--grace-period=0', '--wait=false'];
    await kubectl?.run(pods).catch(() => undefined);
    await runtime?.removeContainers().catch((error: Error) => report(error.message));
    // Neither responds from here on, should it be stopped again.
    kubectl = runtime = undefined;
    await supervisor.stopAll();
    await endAbandonedContainers(folder);
    await removeNetwork(folder, programs.kubeProxy);
    await unmount(folder);
    await rm(folder, { recursive: true, force: true });
    release?.();
    release = undefined;
  };
  try {
    await createNetwork(folder);
    const ports = await findFreePorts('etcd', 'etcdPeer', 'kubeApiserver', 'kubeControllerManager');
    const kubernetes = join(folder, 'kubernetes');
    const options = { supervisor, programs: controlPlane, folder: kubernetes, ports, podAddress: gateway };
    const kubeconfig = await startControlPlane(options);
    kubectl = new Kubectl(kubectlPath, kubeconfig, 'default');
    const authority = await openCertificateAuthority(join(kubernetes, 'pki'), 'kellet-local');
    const server = `https://${gateway}:${ports.kubeApiserver}`;
    const credential = (request: CertificateRequest) => issueCredential(kubernetes, server, request);

    await startScheduler(supervisor, programs.kubeScheduler, kubernetes, server);
    await startDns(
      supervisor,
      kubectl,
      programs.coredns,
      folder,
      (await credential({ name: 'coredns', commonName: 'system:coredns' })).kubeconfig,
    );

    runtime = await startContainerRuntime(supervisor, join(folder, 'containerd'), programs.pause);
    const kubelet = await credential({
      name: 'kubelet',
      commonName: `system:node:${nodeName}`,
      organization: 'system:nodes',
      dnsNames: [nodeName],
      addresses: ['127.0.0.1', gateway],
    });
    const kubeletFile = join(folder, 'kubelet.yaml');
    await writeFile(kubeletFile, kubeletConfiguration(folder, authority.certificate, kubelet, runtime.socket));
    const nodes = kubectl;
    await supervisor.start({
      name: 'kubelet',
      command: programs.kubelet,
      args: [
        ...[`--config=${kubeletFile}`, `--kubeconfig=${kubelet.kubeconfig}`],
        ...[`--root-dir=${join(folder, 'kubelet')}`, `--hostname-override=${nodeName}`, `--node-ip=${gateway}`],
      ],
      isReady: () => nodes.wait(`node/${nodeName}`, 'condition=Ready', 1).then(() => true),
    });
    const proxy = await credential({ name: 'kube-proxy', commonName: 'system:kube-proxy' });
    await kubectl.apply(binding('kellet:kube-proxy', 'system:node-proxier', 'system:kube-proxy'));
    const { health, metrics } = await findFreePorts('health', 'metrics');
    await supervisor.start({
      name: 'kube-proxy',
      command: programs.kubeProxy,
      args: [
        ...[`--kubeconfig=${proxy.kubeconfig}`, `--hostname-override=${nodeName}`, `--cluster-cidr=${podRange}`],
        ...['--proxy-mode=iptables', '--bind-address=127.0.0.1'],
        ...[`--metrics-bind-address=127.0.0.1:${metrics}`, `--healthz-bind-address=127.0.0.1:${health}`],
      ],
      isReady: async () => (await httpStatus(`http://127.0.0.1:${health}/healthz`)) === 200,
    });
    await waitUntil(() => kubectl!.run(['get', 'serviceaccount', 'default']), { what: 'the default service account' });
    const { socket: containerSocket } = runtime;
    const importImage = (file: string): Promise<void> => runtime!.importImage(file);
    return { kubeconfig, kubectl, gateway, supervisor, containerSocket, importImage, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

const binding = (name: string, role: string, user: string) => ({
  apiVersion: 'rbac.authorization.k8s.io/v1',
  kind: 'ClusterRoleBinding',
  metadata: { name },
  roleRef: { apiGroup: 'rbac.authorization.k8s.io', kind: 'ClusterRole', name: role },
  subjects: [{ apiGroup: 'rbac.authorization.k8s.io', kind: 'User', name: user }],
});

/** Starts CoreDNS on port 53 of the bridge. */
async function startDns(
  supervisor: Supervisor,
  kubectl: Kubectl,
  program: string,
  folder: string,
  kubeconfig: string,
): Promise<void> {
  const rules = [
    { apiGroups: [''], resources: ['endpoints', 'services', 'pods', 'namespaces'], verbs: ['list', 'watch'] },
    { apiGroups: ['discovery.k8s.io'], resources: ['endpointslices'], verbs: ['list', 'watch'] },
  ];
  const role = {
    apiVersion: 'rbac.authorization.k8s.io/v1',
    kind: 'ClusterRole',
    metadata: { name: 'kellet:coredns' },
    rules,
  };
  await kubectl.apply(role, binding('kellet:coredns', 'kellet:coredns', 'system:coredns'));
  const file = join(folder, 'Corefile');
  const kubernetes = `kubernetes cluster.local in-addr.arpa {\n    kubeconfig ${kubeconfig}\n    pods insecure\n  }`;
  await writeFile(
    file,
    `.:53 {\n  bind ${gateway}\n  errors\n  ${kubernetes}\n  forward . /etc/resolv.conf\n  cache 5\n}\n`,
  );
  await supervisor.start({ name: 'coredns', command: program, args: ['-conf', file], isReady: async () => true });
}

function kubeletConfiguration(
  folder: string,
  authority: string,
  files: { certificate: string; key: string },
  socket: string,
): string {
  return stringify({
    apiVersion: 'kubelet.config.k8s.io/v1beta1',
    kind: 'KubeletConfiguration',
    authentication: { anonymous: { enabled: false }, webhook: { enabled: true }, x509: { clientCAFile: authority } },
    authorization: { mode: 'Webhook' },
    address: gateway,
    tlsCertFile: files.certificate,
    tlsPrivateKeyFile: files.key,
    cgroupDriver: 'cgroupfs',
    // Works on machines whose cgroups are still version 1, or both.
    failCgroupV1: false,
    failSwapOn: false,
    containerRuntimeEndpoint: `unix://${socket}`,
    podLogsDir: join(folder, 'pod-logs'),
    clusterDomain: 'cluster.local',
    clusterDNS: [gateway],
    evictionHard: { 'memory.available': '100Mi', 'nodefs.available': '1%', 'imagefs.available': '1%' },
    imageGCHighThresholdPercent: 100,
  });
}

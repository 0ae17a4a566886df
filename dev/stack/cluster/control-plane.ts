// A Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager as ordinary processes. Custom resources,
// namespaces, owner references, RBAC and tokens behave as anywhere; without a node (node/), pods stay Pending.
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { httpsStatus } from '../processes/probe.ts';
import type { Supervisor } from '../processes/supervisor.ts';
import type { ControlPlanePrograms } from '../programs/binaries.ts';
import { type CertificateAuthority, openCertificateAuthority, serviceAccountKeys } from './certificates.ts';
import { writeKubeconfig } from './kubeconfig.ts';

const loopback = '127.0.0.1';
/** The first address of the range is the Service `kubernetes`. */
const serviceRange = '10.96.0.0/16';
const serviceAddress = '10.96.0.1';

export interface ControlPlaneOptions {
  supervisor: Supervisor;
  programs: ControlPlanePrograms;
  /** Holds certificates and etcd's data, kept between runs. */
  folder: string;
  ports: { etcd: number; etcdPeer: number; kubeApiserver: number; kubeControllerManager: number };
  /** Address that the API server listens on and that pods reach; without it, there are no pods. */
  podAddress?: string;
}

const flags = (values: Record<string, string | number | boolean>) =>
  Object.entries(values).map(([name, value]) => `--${name}=${value}`);

async function startEtcd({ supervisor, programs, folder, ports }: ControlPlaneOptions, etcdCa: CertificateAuthority) {
  const server = await etcdCa.issue({ name: 'etcd', commonName: 'etcd', addresses: [loopback] });
  const client = await etcdCa.issue({ name: 'kube-apiserver-etcd-client', commonName: 'kube-apiserver' });
  const clientUrl = `https://${loopback}:${ports.etcd}`;
  const peerUrl = `https://${loopback}:${ports.etcdPeer}`;
  await mkdir(join(folder, 'etcd'), { recursive: true, mode: 0o700 });
  await supervisor.start({
    name: 'etcd',
    command: programs.etcd,
    args: flags({
      name: 'kellet',
      'data-dir': join(folder, 'etcd'),
      // Loses data only if the machine loses power, not if etcd is killed.
      'unsafe-no-fsync': true,
      'log-level': 'warn',
      'listen-client-urls': clientUrl,
      'advertise-client-urls': clientUrl,
      'listen-peer-urls': peerUrl,
      'initial-advertise-peer-urls': peerUrl,
      'initial-cluster': `kellet=${peerUrl}`,
      'cert-file': server.certificate,
      'key-file': server.key,
      'trusted-ca-file': etcdCa.certificate,
      'client-cert-auth': true,
      'peer-cert-file': server.certificate,
      'peer-key-file': server.key,
      'peer-trusted-ca-file': etcdCa.certificate,
      'peer-client-cert-auth': true,
    }),
    isReady: async () => (await httpsStatus(`${clientUrl}/health`, etcdCa.certificate, client)) === 200,
  });
  return { clientUrl, client };
}

/** Endpoints must not contain loopback addresses, so the Service `kubernetes` has none. */
const withoutPods = { 'endpoint-reconciler-type': 'none' };

/** Flags with which the API server reaches the kubelet, for logs and port-forwarding. */
async function nodeFlags(authority: CertificateAuthority) {
  const client = await authority.issue({
    name: 'kube-apiserver-kubelet-client',
    commonName: 'kube-apiserver-kubelet-client',
    organization: 'system:masters',
  });
  return {
    'allow-privileged': true,
    'enable-admission-plugins': 'NodeRestriction',
    'kubelet-certificate-authority': authority.certificate,
    'kubelet-client-certificate': client.certificate,
    'kubelet-client-key': client.key,
    'kubelet-preferred-address-types': 'InternalIP,Hostname',
  };
}

/**
 * Starts the three processes under the supervisor (`etcd`, `kube-apiserver`, `kube-controller-manager`). Resolves with
 * the path of the administrator's kubeconfig when they are ready.
 */
export async function startControlPlane(options: ControlPlaneOptions): Promise<string> {
  const { supervisor, programs, folder, ports, podAddress } = options;
  const address = podAddress ?? loopback;
  const pki = join(folder, 'pki');
  const authority = await openCertificateAuthority(pki, 'kellet-local');
  const etcdCa = await openCertificateAuthority(join(pki, 'etcd'), 'kellet-local-etcd');
  const etcd = await startEtcd(options, etcdCa);

  const serviceAccounts = await serviceAccountKeys(pki);
  const server = await authority.issue({
    name: 'kube-apiserver',
    commonName: 'kube-apiserver',
    dnsNames: [
      'localhost',
      'kubernetes',
      'kubernetes.default',
      'kubernetes.default.svc',
      'kubernetes.default.svc.cluster.local',
    ],
    addresses: [...new Set([address, loopback, serviceAddress])],
  });
  const administrator = await authority.issue({ name: 'admin', commonName: 'admin', organization: 'system:masters' });
  const url = `https://${address}:${ports.kubeApiserver}`;
  const status = (path: string) => httpsStatus(url + path, authority.certificate, administrator);
  await supervisor.start({
    name: 'kube-apiserver',
    command: programs.kubeApiserver,
    args: flags({
      'etcd-servers': etcd.clientUrl,
      'etcd-cafile': etcdCa.certificate,
      'etcd-certfile': etcd.client.certificate,
      'etcd-keyfile': etcd.client.key,
      'bind-address': address,
      'advertise-address': address,
      'secure-port': ports.kubeApiserver,
      ...(podAddress ? await nodeFlags(authority) : withoutPods),
      'tls-cert-file': server.certificate,
      'tls-private-key-file': server.key,
      'client-ca-file': authority.certificate,
      'authorization-mode': 'Node,RBAC',
      'service-cluster-ip-range': serviceRange,
      'service-account-issuer': 'https://kubernetes.default.svc.cluster.local',
      'service-account-key-file': serviceAccounts.publicKey,
      'service-account-signing-key-file': serviceAccounts.privateKey,
      // Open watches must not delay the shutdown.
      'shutdown-delay-duration': '0s',
    }),
    stopTimeoutMilliseconds: 5_000,
    readyTimeoutMilliseconds: 120_000,
    isReady: async () => (await status('/readyz')) === 200,
  });
  const kubeconfig = join(folder, 'kubeconfig');
  const common = { server: url, authority: authority.certificate };
  await writeKubeconfig(kubeconfig, { ...common, user: 'admin', credential: administrator });

  const manager = await authority.issue({
    name: 'kube-controller-manager',
    commonName: 'system:kube-controller-manager',
    addresses: [loopback],
  });
  const managerKubeconfig = join(pki, 'kube-controller-manager.kubeconfig');
  await writeKubeconfig(managerKubeconfig, { ...common, user: 'kube-controller-manager', credential: manager });
  const managerUrl = `https://${loopback}:${ports.kubeControllerManager}/healthz`;
  await supervisor.start({
    name: 'kube-controller-manager',
    command: programs.kubeControllerManager,
    args: flags({
      kubeconfig: managerKubeconfig,
      'bind-address': loopback,
      'secure-port': ports.kubeControllerManager,
      'tls-cert-file': manager.certificate,
      'tls-private-key-file': manager.key,
      'leader-elect': false,
      'use-service-account-credentials': true,
      'service-account-private-key-file': serviceAccounts.privateKey,
      'root-ca-file': authority.certificate,
    }),
    stopTimeoutMilliseconds: 3_000,
    isReady: async () => (await httpsStatus(managerUrl, authority.certificate)) === 200,
  });
  return kubeconfig;
}

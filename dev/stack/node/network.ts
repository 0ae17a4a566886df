// The network of pods: a bridge, what the kernel must do for it, and the removal of both. One node per machine.
import { execFile } from 'node:child_process';
import { access, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { removeUnusedNamespaces } from './network-namespaces.ts';

const execute = promisify(execFile);

export const bridge = 'kellet0';
/** Name of the network in CNI's configuration. */
export const networkName = 'kellet';
export const podRange = '10.244.0.0/24';
/** Address of the bridge: what pods reach on this machine. */
export const gateway = '10.244.0.1';

/** Settings of the kernel that kubelet and kube-proxy change. */
const kernelSettings = [
  'net/ipv4/ip_forward',
  'net/ipv4/conf/all/route_localnet',
  'net/netfilter/nf_conntrack_max',
  'vm/overcommit_memory',
  'kernel/panic',
  'kernel/panic_on_oops',
].map((name) => `/proc/sys/${name}`);

const savedFile = (folder: string): string => join(folder, 'kernel-settings.json');

async function bridgeExists(): Promise<boolean> {
  return access(`/sys/class/net/${bridge}`).then(
    () => true,
    () => false,
  );
}

/** Creates the bridge. What the kernel's settings were is kept in `folder` until `removeNetwork`. */
export async function createNetwork(folder: string): Promise<void> {
  const found = await Promise.all(kernelSettings.map((path) => readFile(path, 'utf8').catch(() => undefined)));
  const values = Object.fromEntries(kernelSettings.map((path, index) => [path, found[index]]));
  // A first run that was killed has kept the original values.
  await writeFile(savedFile(folder), JSON.stringify(values), { flag: 'wx' }).catch(() => undefined);
  if (!(await bridgeExists())) {
    await execute('ip', ['link', 'add', bridge, 'type', 'bridge']);
    await execute('ip', ['address', 'add', `${gateway}/${podRange.split('/')[1]}`, 'dev', bridge]);
  }
  await execute('ip', ['link', 'set', bridge, 'up']);
  await writeFile('/proc/sys/net/ipv4/ip_forward', '1');
}

/**
 * Removes the bridge, what is left of the pods of this and earlier runs, and the packet filter rules of Kubernetes, and
 * restores the kernel's settings.
 */
export async function removeNetwork(folder: string, kubeProxy: string): Promise<void> {
  await execute(kubeProxy, ['--cleanup']).catch(() => undefined);
  for (const family of ['iptables', 'ip6tables']) {
    const { stdout } = await execute(`${family}-save`, { maxBuffer: 64 << 20 }).catch(() => ({ stdout: '' }));
    const kept = stdout.split('\n').filter((line) => !/KUBE-|CNI-/.test(line));
    if (kept.length === stdout.split('\n').length) continue;
    const restoring = execute(`${family}-restore`);
    restoring.child.stdin?.end(kept.join('\n'));
    await restoring;
  }
  await removeUnusedNamespaces(networkName);
  if (await bridgeExists()) await execute('ip', ['link', 'delete', bridge]);
  const saved = await readFile(savedFile(folder), 'utf8').catch(() => '{}');
  for (const [path, value] of Object.entries(JSON.parse(saved) as Record<string, string>)) {
    await writeFile(path, value).catch(() => undefined);
  }
}

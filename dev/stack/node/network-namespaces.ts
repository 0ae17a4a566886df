// Removes the network namespaces of pods, and with them their interfaces, when nothing removes them any more: containerd was
// killed, or the whole cluster was. CNI's library keeps a record of each until its plugins have removed it.
import { execFile } from 'node:child_process';
import { readdir, readFile, readlink, realpath, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** The record of an interface, as far as it is needed here. */
interface InterfaceRecord {
  containerId?: string;
  result?: { interfaces?: { sandbox?: string }[] };
}

/** Returns the identity of the network namespace of each process. */
async function namespacesInUse(): Promise<Set<string>> {
  const processes = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  const links = processes.map((pid) => readlink(`/proc/${pid}/ns/net`).catch(() => ''));
  return new Set(await Promise.all(links));
}

/** Unmounts a namespace, which exists for as long as it is mounted. Returns whether it is gone. */
async function removeNamespace(path: string): Promise<boolean> {
  // Fails if another mount hides this one, for example by `ip netns add` since then; then it stays.
  return execute('umount', [path])
    .then(() => rm(path))
    .then(
      () => true,
      () => false,
    );
}

const loopback = /^cni-loopback-(.*)-lo$/;

/**
 * Removes the network namespaces of the pods of a network in which no process is left, and their records. So it does with those
 * of pods that were about to get a network. Returns how many were removed.
 */
export async function removeUnusedNamespaces(network: string, records = '/var/lib/cni/results'): Promise<number> {
  const files = await readdir(records).catch(() => []);
  const used = await namespacesInUse();
  /** Reports whether a record is of a pod that has only its loopback interface. */
  const isBegun = (name: string): boolean => {
    const id = loopback.exec(name)?.[1];
    return id !== undefined && !files.some((other) => other !== name && other.includes(id));
  };
  let removed = 0;
  for (const file of files.filter((name) => name.startsWith(`${network}-`) || isBegun(name))) {
    const text = await readFile(join(records, file), 'utf8').catch(() => '{}');
    const { containerId, result } = JSON.parse(text) as InterfaceRecord;
    const path = result?.interfaces?.find(({ sandbox }) => sandbox)?.sandbox;
    const found = path && (await stat(path).catch(() => undefined));
    if (found && used.has(`net:[${found.ino}]`)) continue;
    if (found) {
      if (!(await removeNamespace(await realpath(path)))) continue;
      removed += 1;
    }
    for (const record of files.filter((name) => name === file || (containerId && name.includes(containerId)))) {
      await rm(join(records, record), { force: true });
    }
  }
  return removed;
}

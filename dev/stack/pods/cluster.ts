// A cluster with pods on this machine, by whichever engine is chosen: what `make cluster` runs.
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { kubernetesFolder } from '../cluster/cluster.ts';
import { findContainerEngine, startKind } from '../cluster/kind.ts';
import { startNodeCluster } from '../node/node.ts';
import { tryLock } from '../processes/file-lock.ts';
import { findOnPath } from '../programs/binaries.ts';
import type { Report } from '../programs/go-build.ts';
import { chooseEngine, lackOf, type MachineFacts, podEngines } from './choose-engine.ts';
import { startPretendedCluster } from './kwok.ts';

/** A cluster with pods. */
export interface PodCluster {
  kubeconfig: string;
  /** Loads an image from an OCI layout in a tar file. */
  readonly loadImage: (file: string) => Promise<void>;
  /** The command that loads another image later; undefined if pods need none. */
  loadCommand: string | undefined;
  readonly stop: () => Promise<void>;
}

/** Returns what decides between the engines. */
async function readFacts(requested: string | undefined): Promise<MachineFacts> {
  const isOnPath = async (...names: string[]): Promise<boolean> => {
    for (const name of names) if (!(await findOnPath(name))) return false;
    return true;
  };
  return {
    requested,
    containerEngine: await findContainerEngine(),
    hasKind: await isOnPath('kind'),
    isLinux: process.platform === 'linux',
    isRoot: process.getuid?.() === 0,
    hasContainerRuntime: (await isOnPath('containerd', 'runc', 'conntrack')) || (await isOnPath('apt-get')),
    hasControlGroups: (await readdir('/sys/fs/cgroup').catch(() => [])).length > 0,
  };
}

/**
 * Starts a cluster of kind, which is kept between runs. Its folder has the lock by which `make clean` finds it, and by
 * which it is not started twice.
 */
async function startKindCluster(folder: string, engine: 'docker' | 'podman', report: Report): Promise<PodCluster> {
  const release = tryLock(join(folder, 'lock'));
  if (!release) throw new Error(`a cluster is already running on ${folder}`);
  try {
    const kubeconfig = join(kubernetesFolder(folder), 'kubeconfig');
    const { name, loadImage, stop } = await startKind(engine, folder, kubeconfig, report);
    const loadCommand = `kind load image-archive FILE --name ${name}`;
    return { kubeconfig, loadCommand, loadImage, stop: () => stop().finally(release) };
  } catch (error) {
    release();
    throw error;
  }
}

/** Starts a cluster with its state in a folder whose name begins with `folder`, by the requested engine or the best one that can run here. */
export async function startPodCluster(
  folder: string,
  requested: string | undefined,
  report: Report,
): Promise<PodCluster> {
  const facts = await readFacts(requested);
  const chosen = chooseEngine(facts);
  for (const engine of podEngines.slice(0, podEngines.indexOf(chosen))) {
    const lack = lackOf(engine, facts);
    if (lack) report(`not ${engine}: ${lack}`);
  }
  report(`pods are run by ${chosen}`);
  switch (chosen) {
    case 'kind':
      return startKindCluster(`${folder}-kind`, facts.containerEngine!, report);
    case 'kubelet': {
      const cluster = await startNodeCluster(`${folder}-kubelet`, report);
      const loadCommand = `ctr --address ${cluster.containerSocket} --namespace k8s.io images import FILE`;
      return { kubeconfig: cluster.kubeconfig, loadCommand, loadImage: cluster.importImage, stop: cluster.stop };
    }
    case 'kwok': {
      const cluster = await startPretendedCluster(`${folder}-kwok`, report);
      report('pods are pretended: they become ready, but no program runs in them');
      const { kubeconfig, stop } = cluster;
      return { kubeconfig, loadCommand: undefined, loadImage: async () => undefined, stop };
    }
  }
}

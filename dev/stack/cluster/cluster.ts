// The Kubernetes API of the local stack: the user's own cluster, kind, or a control plane of ordinary processes.
import { join } from 'node:path';
import type { Supervisor } from '../processes/supervisor.ts';
import { announceBuilds, controlPlanePrograms, findOnPath } from '../programs/binaries.ts';
import type { Report } from '../programs/go-build.ts';
import { type ControlPlaneOptions, startControlPlane } from './control-plane.ts';
import { findContainerEngine, startKind } from './kind.ts';

/** Facts of the machine that decide which kind of cluster is used. */
export interface ClusterFacts {
  /** KELLET_USE_CLUSTER. */
  useCluster: string | undefined;
  /** KUBECONFIG. */
  kubeconfig: string | undefined;
  /** A container engine that responds. */
  engine: 'docker' | 'podman' | undefined;
  /** Whether the command `kind` exists. */
  hasKind: boolean;
}

/**
 * Returns which cluster is used: `existing` (KELLET_USE_CLUSTER=1 and KUBECONFIG), else `kind`, else `processes`
 * (programs from KUBEBUILDER_ASSETS or built).
 */
export function chooseCluster(facts: ClusterFacts): 'existing' | 'kind' | 'processes' {
  if (facts.useCluster === '1') {
    if (!facts.kubeconfig) throw new Error('KELLET_USE_CLUSTER=1 requires KUBECONFIG');
    return 'existing';
  }
  return facts.engine && facts.hasKind ? 'kind' : 'processes';
}

export interface ClusterOptions {
  supervisor: Supervisor;
  stateFolder: string;
  ports: ControlPlaneOptions['ports'];
  environment: NodeJS.ProcessEnv;
  report: Report;
  signal?: AbortSignal | undefined;
}

/** A Kubernetes API that is ready. */
export interface Cluster {
  kubeconfig: string;
  /** Stops what the supervisor does not manage. */
  stop(): Promise<void>;
}

/** Returns the folder of the cluster's files, including the kubeconfig, in a state folder. */
export const kubernetesFolder = (stateFolder: string): string => join(stateFolder, 'kubernetes');

/** Starts the cluster, or connects to an existing one. */
export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  const { supervisor, stateFolder, ports, environment, report, signal } = options;
  const hasKind = (await findOnPath('kind')) !== undefined;
  const engine = hasKind ? await findContainerEngine() : undefined;
  const choice = chooseCluster({
    useCluster: environment.KELLET_USE_CLUSTER,
    kubeconfig: environment.KUBECONFIG,
    engine,
    hasKind,
  });
  const folder = kubernetesFolder(stateFolder);
  const nothing = async () => undefined;
  switch (choice) {
    case 'existing':
      return { kubeconfig: environment.KUBECONFIG!, stop: nothing };
    case 'kind': {
      const kubeconfig = join(folder, 'kubeconfig');
      const kind = await startKind(engine!, stateFolder, kubeconfig, report);
      return { kubeconfig, stop: () => kind.stop() };
    }
    case 'processes': {
      await announceBuilds(environment.NATS_URL ? ['control plane'] : ['nats-server', 'control plane'], report);
      const programs = await controlPlanePrograms(report, signal, environment.KUBEBUILDER_ASSETS);
      return { kubeconfig: await startControlPlane({ supervisor, programs, folder, ports }), stop: nothing };
    }
  }
}

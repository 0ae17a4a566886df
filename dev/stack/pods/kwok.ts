// A cluster whose pods are pretended: an API server, its controllers and scheduler, and kwok, which says of each pod on its node
// that it runs and is ready. For machines that can run no containers; it needs no root and changes nothing outside its folder.
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Kubectl } from '../../clients/kubectl.ts';
import { startScheduler } from '../cluster/components.ts';
import { startControlPlane } from '../cluster/control-plane.ts';
import { findFreePorts } from '../ports/free-ports.ts';
import { endRecordedProcesses } from '../processes/process-table.ts';
import { createSupervisor } from '../processes/supervisor.ts';
import { controlPlanePrograms, kubectlProgram, pretendingPrograms } from '../programs/binaries.ts';
import type { Report } from '../programs/go-build.ts';
import { waitUntil } from '../wait.ts';

const nodeName = 'pretended';

/** Files of kwok's module that say how nodes become ready, and pods run, complete and end. */
const stages = [
  'node/fast/node-initialize',
  'node/heartbeat-with-lease/node-heartbeat-with-lease',
  'pod/fast/pod-ready',
  'pod/fast/pod-complete',
  'pod/fast/pod-delete',
];

/** A cluster whose pods are pretended. */
export interface PretendedCluster {
  kubeconfig: string;
  kubectl: Kubectl;
  /** Stops everything and removes the state. */
  readonly stop: () => Promise<void>;
}

/** Starts the cluster. `folder` holds its state, which is removed first. */
export async function startPretendedCluster(folder: string, report: Report): Promise<PretendedCluster> {
  const [controlPlane, programs, kubectlPath] = [
    await controlPlanePrograms(report),
    await pretendingPrograms(report),
    await kubectlProgram(report),
  ];
  const recordsFolder = join(folder, 'run');
  await endRecordedProcesses(recordsFolder);
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const supervisor = createSupervisor({ recordsFolder, logsFolder: join(folder, 'logs'), report });
  const stop = async (): Promise<void> => {
    await supervisor.stopAll();
    await rm(folder, { recursive: true, force: true });
  };
  try {
    const ports = await findFreePorts('etcd', 'etcdPeer', 'kubeApiserver', 'kubeControllerManager');
    const kubernetes = join(folder, 'kubernetes');
    const kubeconfig = await startControlPlane({ supervisor, programs: controlPlane, folder: kubernetes, ports });
    const kubectl = new Kubectl(kubectlPath, kubeconfig, 'default');
    await startScheduler(supervisor, programs.kubeScheduler, kubernetes, `https://127.0.0.1:${ports.kubeApiserver}`);
    await kubectl.apply({ apiVersion: 'v1', kind: 'Node', metadata: { name: nodeName } });
    const configuration = join(folder, 'stages.yaml');
    const texts = await Promise.all(stages.map((name) => readFile(join(programs.stages, `${name}.yaml`), 'utf8')));
    await writeFile(configuration, texts.join('\n---\n'));
    await supervisor.start({
      name: 'kwok',
      command: programs.kwok,
      args: [
        ...[`--config=${configuration}`, `--kubeconfig=${kubeconfig}`, '--manage-all-nodes=true'],
        ...['--cidr=10.244.0.0/16', '--node-lease-duration-seconds=40'],
      ],
      isReady: () => kubectl.wait(`node/${nodeName}`, 'condition=Ready', 1).then(() => true),
    });
    await waitUntil(() => kubectl.run(['get', 'serviceaccount', 'default']), { what: 'the default service account' });
    return { kubeconfig, kubectl, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

// containerd for the node: its configuration, its images, and the removal of what pods leave behind.
import { execFile } from 'node:child_process';
import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ownArchitecture } from '../../../packaging/architecture.ts';
import { writeImage } from '../../../packaging/oci-image.ts';
import type { Supervisor } from '../processes/supervisor.ts';
import { bridge, gateway, networkName, podRange } from './network.ts';

const execute = promisify(execFile);
const sandboxImage = 'localhost/pause:1';

/** A running containerd. */
export interface ContainerRuntime {
  /** Path of its socket. */
  socket: string;
  /** Loads an image from an OCI layout in a tar file. */
  importImage(file: string): Promise<void>;
  /** Ends and removes every container. */
  removeContainers(): Promise<void>;
}

/** Starts containerd under the supervisor, with the image of sandboxes loaded. `folder` holds images and state. */
export async function startContainerRuntime(
  supervisor: Supervisor,
  folder: string,
  pause: string,
): Promise<ContainerRuntime> {
  const socket = join(folder, 'containerd.sock');
  const networks = join(folder, 'networks');
  await mkdir(networks, { recursive: true });
  await writeFile(join(networks, '10-kellet.conflist'), JSON.stringify(networkConfiguration(folder)));
  const configuration = join(folder, 'containerd.toml');
  await writeFile(configuration, runtimeConfiguration(folder, socket, networks));
  const control = (...args: string[]) => execute('ctr', ['--address', socket, '--namespace', 'k8s.io', ...args]);
  await supervisor.start({
    name: 'containerd',
    command: 'containerd',
    args: ['--config', configuration],
    isReady: () => control('version').then(() => true),
  });
  const importImage = async (file: string): Promise<void> => {
    await control('images', 'import', '--digests', file);
  };
  await importImage(await writeSandboxImage(folder, pause));
  return { socket, importImage, removeContainers: () => removeContainers(control) };
}

const networkConfiguration = (folder: string) => ({
  cniVersion: '0.4.0',
  name: networkName,
  plugins: [
    {
      type: 'bridge',
      bridge,
      isGateway: true,
      ipMasq: true,
      hairpinMode: true,
      ipam: {
        type: 'host-local',
        dataDir: join(folder, 'addresses'),
        ranges: [[{ subnet: podRange, gateway }]],
        routes: [{ dst: '0.0.0.0/0' }],
      },
    },
    { type: 'portmap', capabilities: { portMappings: true } },
  ],
});

const runtimeConfiguration = (folder: string, socket: string, networks: string): string => `version = 2
root = "${folder}/root"
state = "${folder}/state"
[grpc]
  address = "${socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "${sandboxImage}"
  disable_apparmor = true
  # Lowering the score needs CAP_SYS_RESOURCE, which root in a container or sandbox may lack; runc would then fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "${networks}"
`;

async function writeSandboxImage(folder: string, pause: string): Promise<string> {
  const work = join(folder, 'pause');
  await rm(work, { recursive: true, force: true });
  await mkdir(join(work, 'root'), { recursive: true });
  await mkdir(join(work, 'layout'));
  await cp(pause, join(work, 'root/pause'));
  const file = join(work, 'pause.tar');
  const settings = { User: '65535:65535', WorkingDir: '/', Env: [], Entrypoint: ['/pause'], Labels: {} };
  const image = { architecture: ownArchitecture, layers: [join(work, 'root')], settings };
  await writeImage(sandboxImage, [image], new Date(0).toISOString(), join(work, 'layout'), file);
  return file;
}

type Control = (...args: string[]) => Promise<{ stdout: string }>;

async function removeContainers(control: Control): Promise<void> {
  const lines = async (...args: string[]) => (await control(...args)).stdout.split('\n').filter(Boolean);
  const attempt = (...args: string[]) => control(...args).catch(() => undefined);
  for (const task of await lines('tasks', 'list', '--quiet')) {
    await attempt('tasks', 'kill', '--signal', 'SIGKILL', '--all', task);
    await attempt('tasks', 'delete', '--force', task);
  }
  for (const container of await lines('containers', 'list', '--quiet'))
    await attempt('containers', 'delete', container);
}

/** Kills the containers, and their shims, that outlive containerd: of this run, or of one that was killed. */
export async function endAbandonedContainers(folder: string): Promise<void> {
  const processes = (await readdir('/proc')).filter((name) => /^\d+$/.test(name));
  for (const shim of processes) {
    const command = await readFile(`/proc/${shim}/cmdline`, 'utf8').catch(() => '');
    if (!command.includes('containerd-shim') || !command.includes(`${folder}/`)) continue;
    const children = await readFile(`/proc/${shim}/task/${shim}/children`, 'utf8').catch(() => '');
    for (const pid of [...children.split(' ').filter(Boolean), shim]) {
      try {
        process.kill(Number(pid), 'SIGKILL');
      } catch {
        // It has ended meanwhile.
      }
    }
  }
}

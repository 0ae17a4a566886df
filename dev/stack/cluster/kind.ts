// A cluster in a container, by kind. It is kept between runs: stopping the stack stops its container.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import type { Report } from '../programs/go-build.ts';

const execute = promisify(execFile);

/** Returns the container engine whose server responds, or undefined. An installed client alone is not enough. */
export async function findContainerEngine(): Promise<'docker' | 'podman' | undefined> {
  for (const engine of ['docker', 'podman'] as const) {
    // docker prints its server's version; podman has no server and prints its own if it can run containers.
    const format = engine === 'docker' ? '{{.ServerVersion}}' : '{{.Version.Version}}';
    const result = await execute(engine, ['info', '--format', format], { timeout: 10_000 }).catch(() => undefined);
    if (result && /^\d/.test(result.stdout.trim())) return engine;
  }
  return undefined;
}

/** Path of the record, beside the kubeconfig, of the cluster that belongs to a state folder. */
const recordPath = (folder: string) => join(folder, 'kind-cluster.json');

/** Deletes the cluster whose kubeconfig is in this folder, if any. */
export async function deleteKind(folder: string): Promise<void> {
  const record = await readFile(recordPath(folder), 'utf8').catch(() => undefined);
  if (!record) return;
  const { engine, name } = JSON.parse(record) as { engine: string; name: string };
  const environment = { ...process.env, KIND_EXPERIMENTAL_PROVIDER: engine };
  await execute('kind', ['delete', 'cluster', '--name', name], { env: environment, timeout: 120_000 });
  await rm(recordPath(folder));
}

/** A cluster of kind for this state folder. */
export interface KindCluster {
  /** The name by which kind knows it. */
  name: string;
  /** Loads an image from an OCI layout in a tar file into the nodes. */
  readonly loadImage: (file: string) => Promise<void>;
  /** Stops its container. */
  readonly stop: () => Promise<void>;
}

/** Creates the cluster of this state folder, or starts the existing one, and writes its kubeconfig. */
export async function startKind(
  engine: 'docker' | 'podman',
  stateFolder: string,
  kubeconfig: string,
  report: Report,
): Promise<KindCluster> {
  const name = `kellet-${createHash('sha256').update(stateFolder).digest('hex').slice(0, 8)}`;
  const node = `${name}-control-plane`;
  const environment = { ...process.env, KIND_EXPERIMENTAL_PROVIDER: engine };
  const kind = (...args: string[]) => execute('kind', args, { env: environment, timeout: 600_000 });
  await mkdir(dirname(kubeconfig), { recursive: true });
  await writeFile(recordPath(dirname(kubeconfig)), JSON.stringify({ engine, name }));
  const { stdout } = await kind('get', 'clusters');
  if (stdout.split('\n').includes(name)) {
    await execute(engine, ['start', node]);
    await kind('export', 'kubeconfig', '--name', name, '--kubeconfig', kubeconfig);
  } else {
    report(`making the kind cluster ${name} (the first time fetches its image)`);
    await kind('create', 'cluster', '--name', name, '--kubeconfig', kubeconfig, '--wait', '300s');
  }
  return {
    name,
    loadImage: async (file) => {
      await kind('load', 'image-archive', file, '--name', name);
    },
    stop: async () => {
      await execute(engine, ['stop', node]);
    },
  };
}

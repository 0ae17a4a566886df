import { chmod, mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { withFolder } from '../testing/scratch.ts';
import { deleteKind, startKind } from './kind.ts';

// These tests must run without a container engine: the commands are replaced by scripts that record their arguments.
// The tests check which calls are made, and in which order.
describe('stack: kind', () => {
  const path = process.env.PATH;
  afterEach(() => (process.env.PATH = path));

  /** Puts `kind` and `docker` on PATH, with these existing clusters. Returns the calls made so far. */
  async function useCommands(folder: string, clusters: string[]): Promise<() => Promise<string[]>> {
    const bin = join(folder, 'bin');
    const calls = join(folder, 'calls');
    await mkdir(bin);
    for (const name of ['kind', 'docker']) {
      const listing = name === 'kind' ? `[ "$1 $2" = "get clusters" ] && printf '%s\\n' ${clusters.join(' ')}` : '';
      await writeFile(join(bin, name), `#!/bin/sh\necho "${name} $*" >> ${calls}\n${listing}\nexit 0\n`);
      await chmod(join(bin, name), 0o755);
    }
    process.env.PATH = `${bin}:/usr/bin:/bin`;
    return async () => (await readFile(calls, 'utf8')).trim().split('\n');
  }

  const name = 'kellet-c400735c';
  const stateFolder = '/checkout/.kellet';

  it('creates a cluster for the state folder if there is none', async () => {
    await withFolder(async (folder) => {
      const calls = await useCommands(folder, ['other']);
      await startKind('docker', stateFolder, join(folder, 'kubeconfig'), () => undefined);
      expect(await calls()).to.deep.equal([
        'kind get clusters',
        `kind create cluster --name ${name} --kubeconfig ${folder}/kubeconfig --wait 300s`,
      ]);
    });
  });

  it('loads an image into the cluster', async () => {
    await withFolder(async (folder) => {
      const calls = await useCommands(folder, [name]);
      const cluster = await startKind('docker', stateFolder, join(folder, 'kubeconfig'), () => undefined);
      await cluster.loadImage('/dist/kellet-image.tar');
      expect(await calls()).to.include(`kind load image-archive /dist/kellet-image.tar --name ${name}`);
    });
  });

  it('starts an existing cluster, stops it, and deletes it on request', async () => {
    await withFolder(async (folder) => {
      const calls = await useCommands(folder, ['other', name]);
      const cluster = await startKind('docker', stateFolder, join(folder, 'kubeconfig'), () => undefined);
      await cluster.stop();
      await deleteKind(folder);
      await deleteKind(folder);
      expect(await calls()).to.deep.equal([
        'kind get clusters',
        `docker start ${name}-control-plane`,
        `kind export kubeconfig --name ${name} --kubeconfig ${folder}/kubeconfig`,
        `docker stop ${name}-control-plane`,
        `kind delete cluster --name ${name}`,
      ]);
    });
  });
});

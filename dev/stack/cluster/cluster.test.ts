import { chmod, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { withFolder } from '../testing/scratch.ts';
import { chooseCluster, type ClusterFacts } from './cluster.ts';
import { findContainerEngine } from './kind.ts';

describe('stack: choice of cluster', () => {
  const nothing: ClusterFacts = { useCluster: undefined, kubeconfig: undefined, engine: undefined, hasKind: false };
  const cases: [string, Partial<ClusterFacts>, string][] = [
    ['nothing available', {}, 'processes'],
    ['a kubeconfig alone, which may be of any cluster', { kubeconfig: '/k' }, 'processes'],
    ['KELLET_USE_CLUSTER and a kubeconfig', { kubeconfig: '/k', useCluster: '1' }, 'existing'],
    [
      'KELLET_USE_CLUSTER although there is an engine',
      { kubeconfig: '/k', useCluster: '1', engine: 'docker', hasKind: true },
      'existing',
    ],
    ['an engine and kind', { engine: 'podman', hasKind: true }, 'kind'],
    ['an engine without kind', { engine: 'docker' }, 'processes'],
    ['kind without an engine', { hasKind: true }, 'processes'],
  ];
  for (const [title, facts, want] of cases) {
    it(`with ${title}: ${want}`, () => expect(chooseCluster({ ...nothing, ...facts })).to.equal(want));
  }

  it('rejects KELLET_USE_CLUSTER without KUBECONFIG', () => {
    expect(() => chooseCluster({ ...nothing, useCluster: '1' })).to.throw('requires KUBECONFIG');
  });
});

describe('stack: container engine', () => {
  const path = process.env.PATH;
  afterEach(() => (process.env.PATH = path));

  /** Runs `use` with only this shell script on PATH, as `docker`. */
  async function withDocker(body: string, use: () => Promise<void>): Promise<void> {
    await withFolder(async (folder) => {
      await writeFile(join(folder, 'docker'), `#!/bin/sh\n${body}\n`);
      await chmod(join(folder, 'docker'), 0o755);
      process.env.PATH = folder;
      await use();
    });
  }

  it('is found if its server responds', async () => {
    await withDocker('echo 28.2.2', async () => {
      expect(await findContainerEngine()).to.equal('docker');
    });
  });

  it('is not found if only its client exists', async () => {
    // The output of `docker info` without a server: an empty line, the reason on stderr, and on some versions even code
    // 0.
    await withDocker('echo; echo "Cannot connect to the Docker daemon" >&2; exit 0', async () => {
      expect(await findContainerEngine()).to.equal(undefined);
    });
  });

  it('is not found if there is none', async () => {
    process.env.PATH = '';
    expect(await findContainerEngine()).to.equal(undefined);
  });
});

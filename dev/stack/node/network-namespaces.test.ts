// Tests against the namespaces of this machine; they need root on Linux.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { waitUntil } from '../wait.ts';
import { removeUnusedNamespaces } from './network-namespaces.ts';

const execute = promisify(execFile);
/** Reports whether a namespace is mounted. */
const exists = async (path: string) => (await readFile('/proc/mounts', 'utf8')).includes(` ${path} `);

describe('network namespaces of pods that are gone', () => {
  let folder: string;
  let records: string;
  let left: string, lived: string, foreign: string, begun: string;

  before(async function () {
    folder = await mkdtemp(join(tmpdir(), 'kellet-namespaces-'));
    records = join(folder, 'records');
    await mkdir(records);
    const names = ['left', 'lived', 'foreign', 'begun'] as const;
    [left, lived, foreign, begun] = names.map((name) => join(folder, name)) as [string, string, string, string];
    for (const path of [left, lived, foreign, begun]) {
      await writeFile(path, '');
      const created = await execute('unshare', [`--net=${path}`, 'true']).catch(() => undefined);
      if (!created) this.skip();
    }
    for (const [network, path] of [
      ['own', left],
      ['own', lived],
      ['own', join(folder, 'missing')],
      ['other', foreign],
    ] as const) {
      const interfaces = [{ name: 'bridge' }, { name: 'eth0', sandbox: path }];
      const name = basename(path);
      const record = { networkName: network, containerId: `of-${name}`, result: { interfaces } };
      await writeFile(join(records, `${network}-of-${name}-eth0`), JSON.stringify(record));
      await writeFile(join(records, `cni-loopback-of-${name}-lo`), '{}');
    }
    // containerd was killed before it had added the pod's network.
    const record = { containerId: 'of-begun', result: { interfaces: [{ name: 'lo', sandbox: begun }] } };
    await writeFile(join(records, 'cni-loopback-of-begun-lo'), JSON.stringify(record));
  });
  after(async () => {
    for (const path of [left, lived, foreign, begun]) await execute('umount', [path]).catch(() => undefined);
    await rm(folder, { recursive: true });
  });

  it('are removed with their interfaces and records, except those with processes and those of other networks', async () => {
    await execute('ip', ['link', 'add', 'kellet-test0', 'type', 'veth', 'peer', 'name', 'inside', 'netns', left]);
    const inside = spawn('nsenter', [`--net=${lived}`, 'sh', '-c', 'echo ready; exec sleep 600'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(inside, 'exit');
    try {
      await once(inside.stdout, 'data');
      expect(await removeUnusedNamespaces('own', records)).to.equal(2);
      const exist = await Promise.all([left, lived, foreign, begun].map(exists));
      expect(exist).to.deep.equal([false, true, true, false]);
      expect((await readdir(records)).sort()).to.deep.equal([
        'cni-loopback-of-foreign-lo',
        'cni-loopback-of-lived-lo',
        'other-of-foreign-eth0',
        'own-of-lived-eth0',
      ]);
      // The kernel destroys the interfaces of a namespace a moment after it.
      await waitUntil(async () => !(await execute('ip', ['link'])).stdout.includes('kellet-test0'), {
        what: 'the end of its interface',
      });
    } finally {
      inside.kill('SIGKILL');
      await ended;
    }
    expect(await removeUnusedNamespaces('own', records)).to.equal(1);
    expect(await exists(lived)).to.equal(false);
  });

  it('are none where no pod has ever run', async () => {
    expect(await removeUnusedNamespaces('own', join(folder, 'missing'))).to.equal(0);
  });
});

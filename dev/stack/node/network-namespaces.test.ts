// Tests against the namespaces of this machine; they need root on Linux.
import { expect } from 'chai';
import { execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { removeUnusedNamespaces } from './network-namespaces.ts';

const execute = promisify(execFile);
const networkNamespaces = async () => (await execute('ip', ['netns', 'list'])).stdout;

describe('network namespaces of pods that are gone', () => {
  const [left, lived, foreign] = [randomUUID(), randomUUID(), randomUUID()].map((id) => `cni-${id}`) as [
    string,
    string,
    string,
  ];
  let records: string;

  before(async function () {
    const created = await execute('ip', ['netns', 'add', left]).catch(() => undefined);
    if (!created) this.skip();
    for (const name of [lived, foreign]) await execute('ip', ['netns', 'add', name]);
    records = await mkdtemp(join(tmpdir(), 'kellet-records-'));
    for (const [network, name] of [
      ['own', left],
      ['own', lived],
      ['own', 'cni-without-a-namespace'],
      ['other', foreign],
    ] as const) {
      const interfaces = [{ name: 'bridge' }, { name: 'eth0', sandbox: `/var/run/netns/${name}` }];
      const record = { networkName: network, containerId: `of-${name}`, result: { interfaces } };
      await writeFile(join(records, `${network}-of-${name}-eth0`), JSON.stringify(record));
      await writeFile(join(records, `cni-loopback-of-${name}-lo`), '{}');
    }
  });
  after(async () => {
    if (!records) return;
    for (const name of [left, lived, foreign]) await execute('ip', ['netns', 'delete', name]).catch(() => undefined);
    await rm(records, { recursive: true });
  });

  it('are removed with their interfaces and records, except those with processes and those of other networks', async () => {
    await execute('ip', ['link', 'add', 'kellet-test0', 'type', 'veth', 'peer', 'name', 'inside', 'netns', left]);
    const inside = spawn('ip', ['netns', 'exec', lived, 'sh', '-c', 'echo ready; exec sleep 600'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(inside, 'exit');
    try {
      await once(inside.stdout, 'data');
      expect(await removeUnusedNamespaces('own', records)).to.equal(1);
      expect(await networkNamespaces())
        .to.contain(lived)
        .and.to.contain(foreign)
        .and.not.to.contain(left);
      expect((await readdir(records)).sort()).to.deep.equal(
        [
          ...[`cni-loopback-of-${lived}-lo`, `cni-loopback-of-${foreign}-lo`],
          ...[`own-of-${lived}-eth0`, `other-of-${foreign}-eth0`],
        ].sort(),
      );
      expect((await execute('ip', ['link'])).stdout).not.to.contain('kellet-test0');
    } finally {
      inside.kill('SIGKILL');
      await ended;
    }
    expect(await removeUnusedNamespaces('own', records)).to.equal(1);
    expect(await networkNamespaces()).not.to.contain(lived);
  });

  it('are none where no pod has ever run', async () => {
    expect(await removeUnusedNamespaces('own', join(records, 'missing'))).to.equal(0);
  });
});

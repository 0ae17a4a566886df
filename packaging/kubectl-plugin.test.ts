// Tests that the plugin runs outside the checkout.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFile, mkdir, mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { parse } from 'yaml';
import { type PackedPlugin, packPlugin } from './kubectl-plugin.ts';

const execute = promisify(execFile);

interface Manifest {
  spec: { version: string; platforms: { uri: string; sha256: string; bin: string }[] };
}

describe('kubectl-kellet as a package', function () {
  this.timeout(120_000);
  const uri = 'https://example.com/kubectl-kellet.tar.gz';
  let folder: string;
  let packed: PackedPlugin;
  let manifest: Manifest;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kubectl-kellet-'));
    packed = await packPlugin(join(folder, 'dist'), uri);
    manifest = parse(await readFile(packed.manifest, 'utf8')) as Manifest;
    await mkdir(join(folder, 'unpacked'));
    await execute('tar', ['-xzf', packed.archive, '-C', join(folder, 'unpacked')]);
  });
  after(() => rm(folder, { recursive: true, force: true }));

  const digestOf = async (file: string) =>
    createHash('sha256')
      .update(await readFile(file))
      .digest('hex');

  /** Runs a program without anything of the checkout but Node. */
  const run = async (program: string, ...args: string[]) => {
    const environment = { PATH: `${dirname(process.execPath)}:/usr/bin:/bin`, HOME: folder };
    return (await execute(program, args, { env: environment })).stdout;
  };

  it('runs where krew unpacks it, under the name that krew links, and matches its manifest', async () => {
    expect(manifest.spec.platforms[0]).to.include({
      uri,
      sha256: await digestOf(packed.archive),
      bin: 'kubectl-kellet',
    });
    const linked = join(folder, 'linked');
    await symlink(join(folder, 'unpacked', manifest.spec.platforms[0]!.bin), linked);
    // Loads the Kubernetes client library, which reveals missing files.
    expect(await run(linked, 'version')).to.match(
      new RegExp(`^plugin: +${manifest.spec.version}\nkubernetes: unreachable`),
    );
    expect(await run(linked, '__complete', 'ro')).to.equal('rollback\n:4\n');
  });

  it('is one file, which runs when copied anywhere', async () => {
    const copied = join(folder, 'copied');
    await copyFile(join(folder, 'unpacked/kubectl-kellet'), copied);
    expect(await run(copied, 'version')).to.match(/^plugin: +v/);
  });

  it('keeps the licences of the libraries in it', async () => {
    const licences = await readFile(join(folder, 'unpacked/LICENSES-OF-LIBRARIES'), 'utf8');
    expect(licences)
      .to.match(/^@kubernetes\/client-node .*\(Apache-2\.0\)$/m)
      .and.match(/^undici .*\(MIT\)$/m);
    expect(licences).not.to.include('(see below)');
  });

  it('is the same archive when it is built again', async () => {
    const again = await packPlugin(join(folder, 'again'), uri);
    expect(await digestOf(again.archive)).to.equal(await digestOf(packed.archive));
  });

  it('is an npm package whose programs run', async () => {
    await mkdir(join(folder, 'npm'));
    await execute('tar', ['-xzf', packed.tarball, '-C', join(folder, 'npm')]);
    const { bin } = JSON.parse(await readFile(join(folder, 'npm/package/package.json'), 'utf8')) as {
      bin: Record<string, string>;
    };
    expect(await run(join(folder, 'npm/package', bin['kubectl-kellet']!), '__complete', 'ro')).to.equal(
      'rollback\n:4\n',
    );
  });
});

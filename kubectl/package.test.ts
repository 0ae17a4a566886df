// Tests that the krew archive runs outside the checkout.
import { expect } from 'chai';
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { parse } from 'yaml';

const execute = promisify(execFile);

interface Manifest {
  spec: { version: string; platforms: { uri: string; sha256: string; bin: string }[] };
}

describe('the archive of kubectl-kellet', function () {
  this.timeout(120_000);
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kubectl-kellet-archive-'));
  });
  after(() => rm(folder, { recursive: true, force: true }));

  it('runs where it is unpacked, under the name that krew links, and matches its manifest', async () => {
    const uri = 'https://example.com/kubectl-kellet.tar.gz';
    const script = join(import.meta.dirname, 'package.ts');
    const { stdout } = await execute(process.execPath, [script, '--uri', uri]);
    const [archive, manifestFile] = stdout.trim().split('\n') as [string, string];
    const { spec } = parse(await readFile(manifestFile, 'utf8')) as Manifest;
    const sha256 = createHash('sha256')
      .update(await readFile(archive))
      .digest('hex');
    expect(spec.platforms[0]).to.include({ uri, sha256, bin: 'kubectl-kellet' });
    await execute('tar', ['-xzf', archive, '-C', folder]);
    const linked = join(folder, 'linked');
    await symlink(join(folder, spec.platforms[0]!.bin), linked);
    const environment = { PATH: `${dirname(process.execPath)}:${process.env['PATH']}`, HOME: folder };
    const run = async (...args: string[]) => (await execute(linked, args, { env: environment })).stdout;
    // Loads the Kubernetes client library, which reveals missing files.
    expect(await run('version')).to.match(new RegExp(`^plugin: +${spec.version}\nkubernetes: unreachable`));
    expect(await run('__complete', 'ro')).to.equal('rollback\n:4\n');
  });
});

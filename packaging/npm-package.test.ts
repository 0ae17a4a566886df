// Tests that kellet-verify runs, and type-checks, as an installed package. The client's package is tested against the
// running stack (e2e/tests/client.test.ts).
import { expect } from 'chai';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { packLibrary } from './npm-package.ts';
import { root } from './paths.ts';

const execute = promisify(execFile);
const checkpoint = '871203:4239a39000aff38160c13fab3f87e47dae8be694f3c36378d0b94d4d79178740';

describe('@kellet/verify as a package', function () {
  this.timeout(120_000);
  let project: string;
  let installed: string;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), 'kellet-verify-'));
    const tarball = packLibrary('verify', join(project, 'dist'));
    installed = join(project, 'node_modules/@kellet/verify');
    await mkdir(installed, { recursive: true });
    await execute('tar', ['-xzf', tarball, '--strip-components=1', '-C', installed]);
    const { dependencies } = JSON.parse(await readFile(join(installed, 'package.json'), 'utf8')) as {
      dependencies: Record<string, string>;
    };
    for (const name of Object.keys(dependencies)) {
      await mkdir(join(project, 'node_modules', name, '..'), { recursive: true });
      const found = await Promise.any(
        ['verify/node_modules', 'node_modules'].map(async (folder) => {
          await readFile(join(root, folder, name, 'package.json'));
          return join(root, folder, name);
        }),
      );
      await symlink(found, join(project, 'node_modules', name));
    }
  });
  after(() => rm(project, { recursive: true, force: true }));

  it('has a program that proves a bundle', async () => {
    const { bin } = JSON.parse(await readFile(join(installed, 'package.json'), 'utf8')) as {
      bin: Record<string, string>;
    };
    const program = join(installed, bin['kellet-verify']!);
    const bundle = join(root, 'verify/vectors/bundle-1.0.json');
    const { stdout } = await execute(process.execPath, [program, bundle, '--checkpoint', checkpoint]);
    expect(stdout).to.match(/^proven$/m);
  });

  it('has declarations that a strict project compiles against, and a schema', async () => {
    const source = "import { verifyBundleText } from '@kellet/verify';\nexport const verify = verifyBundleText;\n";
    await writeFile(join(project, 'package.json'), '{"type":"module"}');
    await writeFile(join(project, 'main.ts'), source);
    const compilerOptions = { module: 'nodenext', target: 'es2022', strict: true, noEmit: true, types: [] };
    await writeFile(join(project, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['main.ts'] }));
    await execute(join(root, 'node_modules/.bin/tsc'), ['--project', project]).catch((error: { stdout: string }) => {
      throw new Error(error.stdout);
    });
    const schema = join(installed, 'schema/proof-bundle-1.0.json');
    expect(JSON.parse(await readFile(schema, 'utf8'))).to.have.property('$schema');
  });
});

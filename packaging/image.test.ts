// Builds the image and runs its programs inside its root file system, as its user.
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, globSync } from 'node:fs';
import { lstat, mkdir, mkdtemp, open, readFile, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { copyNode, installDependencies } from './application.ts';
import { ownArchitecture } from './architecture.ts';
import { unpackBase } from './debian-base.ts';
import { writeImage } from './oci-image.ts';
import { root } from './paths.ts';

const execute = promisify(execFile);

interface Descriptor {
  digest: string;
  size: number;
}
interface Configuration {
  architecture: string;
  config: { User: string; Labels: Record<string, string>; Cmd: string[]; Env: string[] };
  rootfs: { diff_ids: string[] };
}

/** Numbers of architectures in the header of an ELF file. */
const machines = { amd64: 62, arm64: 183 };

/** Returns the number of the architecture of a program or library, or undefined for other files. */
async function machineOf(path: string): Promise<number | undefined> {
  const file = await open(path);
  try {
    const { buffer, bytesRead } = await file.read(Buffer.alloc(20), 0, 20, 0);
    return bytesRead === 20 && buffer.readUInt32BE(0) === 0x7f454c46 ? buffer.readUInt16LE(18) : undefined;
  } finally {
    await file.close();
  }
}

describe('the image', function () {
  this.timeout(600_000);
  let folder: string;
  let digest: string;
  let printed: string;
  let configuration: Configuration;
  const at = (path: string) => join(folder, 'root', path);

  const build = async (name: string): Promise<string> => {
    const command = ['packaging/image.ts', '--output', join(folder, `${name}.tar`)];
    const { stdout, stderr } = await execute(process.execPath, command, { cwd: root });
    printed = stderr;
    return stdout.trim().split('\n')[1]!;
  };

  before(async function () {
    // Debian's tools, and the right to change the root, are not everywhere; the image is tested where they are.
    if (process.platform !== 'linux' || process.getuid?.() !== 0) this.skip();
    folder = await mkdtemp(join(tmpdir(), 'kellet-image-test-'));
    digest = await build('image');
    const layout = join(folder, 'layout');
    await mkdir(layout);
    await mkdir(join(folder, 'root'));
    await execute('tar', ['-xf', join(folder, 'image.tar'), '-C', layout]);
    const blob = (digest: string) => join(layout, 'blobs', digest.replace(':', '/'));
    const read = async <T>(digest: string) => JSON.parse(await readFile(blob(digest), 'utf8')) as T;
    const index = JSON.parse(await readFile(join(layout, 'index.json'), 'utf8')) as { manifests: Descriptor[] };
    const images = await read<{ manifests: Descriptor[] }>(index.manifests[0]!.digest);
    const manifest = await read<{ config: Descriptor; layers: Descriptor[] }>(images.manifests[0]!.digest);
    configuration = await read<Configuration>(manifest.config.digest);
    for (const layer of manifest.layers) {
      expect((await stat(blob(layer.digest))).size).to.equal(layer.size);
      const hash = createHash('sha256');
      await pipeline(createReadStream(blob(layer.digest)), hash);
      expect(`sha256:${hash.digest('hex')}`).to.equal(layer.digest);
      await execute('tar', ['-xzf', blob(layer.digest), '--no-same-owner', '-C', join(folder, 'root')]);
    }
    expect(configuration.rootfs.diff_ids).to.have.length(manifest.layers.length);
  });
  after(() => folder && rm(folder, { recursive: true, force: true }));

  /** Runs a program of the image as its user. */
  const run = async (program: string, ...args: string[]): Promise<string> => {
    const [user] = configuration.config.User.split(':');
    const environment = Object.fromEntries(configuration.config.Env.map((pair) => pair.split('=') as [string, string]));
    const command = [`--userspec=${user}:${user}`, join(folder, 'root'), `/usr/local/bin/${program}`, ...args];
    return (await execute('/usr/sbin/chroot', command, { env: environment })).stdout;
  };

  it('runs each of its programs as an ordinary user', async () => {
    expect(configuration.config.User).to.equal('65532:65532');
    expect(await run('kellet-apiserver', '--help')).to.match(/^kellet-apiserver: /);
    expect(await run('kellet-operator', '--help')).to.match(/^kellet-operator: /);
    expect(await run('kellet-verify', '--help')).to.match(/^Usage:\n {2}kellet-verify /);
  });

  it('can start the threads of its programs', async () => {
    const folder = '/app/apiserver/src/auth/accounts';
    const strength = `import('${folder}/password-strength.js').then(async (m) => console.log(await m.passwordStrength('password1234', [])))`;
    expect(await run('node', '--eval', strength)).to.match(/^[0-4]\n$/);
    const hash = `import('${folder}/passwords.js').then(async (m) => console.log(await m.hashPassword('password1234')))`;
    expect(await run('node', '--eval', hash)).to.match(/^\$argon2id\$/);
  });

  it('contains what the programs read: migrations, definitions and contract', () => {
    const migrations = globSync('*.sql', { cwd: join(root, 'apiserver/migrations') }).toSorted();
    expect(globSync('*.sql', { cwd: at('app/apiserver/migrations') }).toSorted()).to.deep.equal(migrations);
    for (const file of ['proto/gen/openapi.json', 'proto/gen/descriptors.binpb', 'crds/ota-rollout.yaml'])
      expect(globSync(file, { cwd: at('app') })).to.have.length(1);
  });

  it('contains the dashboard, built', async () => {
    expect(await readFile(at('app/node_modules/@kellet/dashboard/dist/index.html'), 'utf8')).to.include('<script');
    expect(globSync('app/dashboard/**/*.{ts,tsx}', { cwd: at('.') })).to.deep.equal([]);
    expect(globSync('app/node_modules/{preact,esbuild}', { cwd: at('.') })).to.deep.equal([]);
  });

  it('contains no shell, no package manager, no sources, no tests, and nothing that its user may write', async () => {
    const names = ['sh', 'bash', 'dash', 'busybox', 'apt', 'apt-get', 'dpkg', 'npm', 'su', 'mount'];
    for (const name of names) expect(globSync(`**/{bin,sbin}/${name}`, { cwd: at('.') }), name).to.deep.equal([]);
    const own = globSync('app/{apiserver,operator,verify,crds,kubernetes,proto}/**/*', { cwd: at('.') });
    expect(own.filter((path) => /\.ts$|\.test\.|\/testing\//.test(path))).to.deep.equal([]);
    const { stdout } = await execute('find', [
      at('.'),
      '-perm',
      '-0002',
      '-not',
      '-type',
      'l',
      '-not',
      '-path',
      at('tmp'),
    ]);
    expect(stdout.replaceAll(`${at('.')}`, '')).to.equal('');
    const { stdout: privileged } = await execute('find', [at('.'), '-perm', '/6000']);
    expect(privileged).to.equal('');
  });

  it('says what it is, and lists its components with versions and licences', async () => {
    expect(configuration.config.Labels).to.include({ 'org.opencontainers.image.licenses': 'Apache-2.0' });
    const bill = JSON.parse(await readFile(at('app/bill-of-materials.cdx.json'), 'utf8')) as {
      bomFormat: string;
      components: { name: string; version: string; purl: string; licenses?: unknown[] }[];
    };
    expect(bill.bomFormat).to.equal('CycloneDX');
    const names = bill.components.map(({ name }) => name);
    expect(names).to.include.members(['libc6', 'node', 'pg', '@bsv/sdk', '@grpc/grpc-js', 'preact']);
    expect(names).not.to.include.members(['mocha', 'typescript', 'eslint']);
    const installed = globSync(['*/package.json', '@*/*/package.json'], { cwd: at('app/node_modules') });
    expect(bill.components.filter(({ purl }) => purl.startsWith('pkg:npm/')).length).to.be.at.least(
      installed.length - 6,
    );
    expect(bill.components.filter(({ version }) => !version)).to.deep.equal([]);
  });

  it('is printed with its size and start-up time', () => {
    expect(printed).to.match(/^ {2}size [1-9]\d* MB, start-up time [1-9]\d* ms$/m);
  });

  it('has a counterpart for arm64, with programs and libraries of that architecture', async () => {
    const work = join(folder, 'arm64');
    const layers = ['base', 'node', 'dependencies'].map((name) => join(work, 'layers', name));
    for (const layer of layers) await mkdir(layer, { recursive: true });
    const [base, node, dependencies] = layers as [string, string, string];
    unpackBase('arm64', base, join(work, 'debian'));
    copyNode(installDependencies('arm64', dependencies, join(work, 'npm')), node);
    /** Returns the names of programs and libraries, without the architecture that the names of packages contain. */
    const binaries = async (folders: readonly string[], machine: number): Promise<string[]> => {
      const names: string[] = [];
      for (const folder of folders) {
        for (const file of globSync('{usr/local/bin,usr/lib,lib,app/node_modules}/**/*', { cwd: folder })) {
          const path = join(folder, file);
          if (!(await lstat(path)).isFile()) continue;
          const found = await machineOf(path);
          if (found === undefined) continue;
          expect(found, path).to.equal(machine);
          names.push(file.replaceAll(/arm64|x64|aarch64|x86[-_]64/g, 'ARCHITECTURE'));
        }
      }
      return names.toSorted();
    };
    const native = (names: string[]) => names.filter((name) => /\.node$|bin\/node$/.test(name));
    const found = native(await binaries(layers, machines.arm64));
    expect(found).to.include('usr/local/bin/node');
    expect(found).to.have.length.above(1);
    expect(found).to.deep.equal(native(await binaries([join(folder, 'root')], machines[ownArchitecture])));

    const layout = join(work, 'layout');
    await mkdir(layout);
    const settings = { ...configuration.config, WorkingDir: '/tmp' };
    const image = { architecture: 'arm64' as const, layers: [node], settings };
    await writeImage('localhost/kellet:arm64', [image], new Date(0).toISOString(), layout, join(work, 'image.tar'));
    const documents = await Promise.all(
      globSync('blobs/sha256/*', { cwd: layout }).map(async (file) => {
        const path = join(layout, file);
        return (await stat(path)).size < 100_000 ? (JSON.parse(await readFile(path, 'utf8')) as object) : {};
      }),
    );
    const index = documents.find((document) => 'manifests' in document);
    expect(index).to.have.nested.property('manifests[0].platform.architecture', 'arm64');
    expect(documents.find((document) => 'rootfs' in document)).to.include({ architecture: 'arm64', os: 'linux' });
  });

  it('is the same image when it is built again', async function () {
    // Doubles the time of this file, so the gate leaves it to `KELLET_TEST_IMAGE_TWICE=1`.
    if (!process.env['KELLET_TEST_IMAGE_TWICE']) this.skip();
    expect(await build('again')).to.equal(digest);
  });
});

// Tests that kellet-verify, @kellet/device and @kellet/client run, and type-check, as installed packages. The client's package
// also runs against the stack (e2e/tests/client.test.ts).
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { build } from 'esbuild';
import { packLibrary } from './npm-package.ts';
import { root } from './paths.ts';

const execute = promisify(execFile);
const checkpoint = '871203:4239a39000aff38160c13fab3f87e47dae8be694f3c36378d0b94d4d79178740';

/** Installs a package in a project, with the packages that it depends on. Returns its folder. */
async function install(workspace: string, project: string): Promise<string> {
  const tarball = packLibrary(workspace, join(project, 'dist'));
  const installed = join(project, 'node_modules/@kellet', workspace);
  await mkdir(installed, { recursive: true });
  await execute('tar', ['-xzf', tarball, '--strip-components=1', '-C', installed]);
  const { dependencies = {} } = JSON.parse(await readFile(join(installed, 'package.json'), 'utf8')) as {
    dependencies?: Record<string, string>;
  };
  for (const name of Object.keys(dependencies)) {
    await mkdir(join(project, 'node_modules', name, '..'), { recursive: true });
    const found = await Promise.any(
      [`${workspace}/node_modules`, 'node_modules'].map(async (folder) => {
        await readFile(join(root, folder, name, 'package.json'));
        return join(root, folder, name);
      }),
    );
    await symlink(found, join(project, 'node_modules', name));
  }
  await writeFile(join(project, 'package.json'), '{"type":"module"}');
  return installed;
}

/** Compiles a program of a project strictly. */
async function compileStrictly(project: string, source: string, types: string[] = []): Promise<void> {
  await writeFile(join(project, 'main.ts'), source);
  const compilerOptions = { module: 'nodenext', target: 'es2022', strict: true, noEmit: true, types };
  await writeFile(join(project, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['main.ts'] }));
  await execute(join(root, 'node_modules/.bin/tsc'), ['--project', project]).catch((error: { stdout: string }) => {
    throw new Error(error.stdout);
  });
}

describe('@kellet/verify as a package', function () {
  this.timeout(120_000);
  let project: string;
  let installed: string;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), 'kellet-verify-'));
    installed = await install('verify', project);
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
    await compileStrictly(project, source);
    const schema = join(installed, 'schema/proof-bundle-1.0.json');
    expect(JSON.parse(await readFile(schema, 'utf8'))).to.have.property('$schema');
  });
});

describe('@kellet/device as a package', function () {
  this.timeout(120_000);
  let project: string;
  let installed: string;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), 'kellet-device-'));
    installed = await install('device', project);
  });
  after(() => rm(project, { recursive: true, force: true }));

  it('contains JavaScript, declarations and source maps, and no tests', async () => {
    const files = await readdir(join(installed, 'src'), { recursive: true });
    for (const name of ['index', 'core', 'sim/cli', 'transports/mqtt', 'generated/kellet/v1/ota_pb']) {
      expect(files).to.include.members([`${name}.js`, `${name}.d.ts`, `${name}.js.map`]);
    }
    expect(files.filter((name) => /\.test\.|(?<!\.d)\.ts$/.test(name))).to.deep.equal([]);
  });

  it('has the program kellet-sim', async () => {
    const { bin } = JSON.parse(await readFile(join(installed, 'package.json'), 'utf8')) as {
      bin: Record<string, string>;
    };
    const program = join(installed, bin['kellet-sim']!);
    const { stdout } = await execute(process.execPath, [program, '--help']);
    expect(stdout).to.match(/^kellet-sim simulates devices/);
    const wrong = await execute(process.execPath, [program]).catch((error: { code: number; stderr: string }) => error);
    expect(wrong).to.include({ code: 2, stderr: 'kellet-sim: --url is missing, or is not an address\n' });
  });

  it('runs without the packages of other protocols, and names them when they are needed', async () => {
    const program = `
      import { openProtocol } from '@kellet/device';
      await openProtocol('https://kellet.example');
      for (const url of ['grpc://kellet.example:9090', 'mqtt://kellet.example']) {
        await openProtocol(url).catch(({ message }) => console.log(message));
      }`;
    await writeFile(join(project, 'main.js'), program);
    const { stdout } = await execute(process.execPath, [join(project, 'main.js')]);
    expect(stdout).to.match(/^grpc:.* npm install @grpc\/grpc-js @bufbuild\/protobuf\nmqtt:.* npm install mqtt\n$/);
  });

  it('has declarations that a strict project compiles against, and a core for browsers', async () => {
    const source = `
      import { Device, MemoryBuffer, RestProtocol } from '@kellet/device/core';
      const transport = new RestProtocol('https://kellet.example').open({ device_id: 'd', api_key: 'k' });
      export const device = new Device({ identity: { device_id: 'd', api_key: 'k' }, transport, buffer: new MemoryBuffer() });
      device.record({ temperature: 21.5, state: 'ok' });
      // @ts-expect-error: a value is a number or a string
      device.record({ temperature: true });`;
    await mkdir(join(project, 'node_modules/@types'), { recursive: true });
    await symlink(join(root, 'node_modules/@types/node'), join(project, 'node_modules/@types/node'));
    await symlink(join(root, 'node_modules/undici-types'), join(project, 'node_modules/undici-types'));
    await compileStrictly(project, source, ['node']);
    // A module of Node would end this with an error.
    const { outputFiles } = await build({
      ...{ entryPoints: [join(project, 'main.ts')], bundle: true, platform: 'browser', format: 'esm', write: false },
    });
    expect(outputFiles[0]!.text).to.include('idempotency-key');
  });
});

describe('@kellet/client as a package', function () {
  this.timeout(120_000);
  let project: string;
  let installed: string;
  before(async () => {
    project = await mkdtemp(join(tmpdir(), 'kellet-client-'));
    installed = await install('client', project);
  });
  after(() => rm(project, { recursive: true, force: true }));

  it('contains JavaScript, declarations and source maps, and no tests', async () => {
    const files = await readdir(join(installed, 'src'), { recursive: true });
    expect(files).to.include.members(['index.js', 'index.d.ts', 'index.js.map', 'generated/api.d.ts']);
    expect(files.filter((name) => /\.test\.|(?<!\.d)\.ts$/.test(name))).to.deep.equal([]);
  });

  it('runs in Node, and says that the connection was refused', async () => {
    const server = createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    server.close();
    await once(server, 'close');
    const program = `
      import { KelletClient } from '@kellet/client';
      const client = new KelletClient({ baseUrl: 'http://127.0.0.1:${port}' });
      await client.get('/api/v1/tenant').catch((error) => console.log(error.cause.code));`;
    await writeFile(join(project, 'main.js'), program);
    const { stdout } = await execute(process.execPath, [join(project, 'main.js')]);
    expect(stdout).to.equal('ECONNREFUSED\n');
  });

  it('has declarations that a strict project compiles against, and is for browsers too', async () => {
    const source = `
      import { KelletClient } from '@kellet/client';
      export async function names(client: KelletClient): Promise<string[]> {
        const { devices } = await client.get('/api/v1/devices');
        return devices.map(({ hardware_id }) => hardware_id);
      }
      // @ts-expect-error: there is no such path
      export const wrong = (client: KelletClient) => client.get('/api/v1/divices');
      export const client = new KelletClient({ baseUrl: 'https://kellet.example' });`;
    await compileStrictly(project, source);
    // A module of Node would end this with an error.
    const { outputFiles } = await build({
      ...{ entryPoints: [join(project, 'main.ts')], bundle: true, platform: 'browser', format: 'esm', write: false },
    });
    expect(outputFiles[0]!.text).to.include('kellet.example');
  });
});

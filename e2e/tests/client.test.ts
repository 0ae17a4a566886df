// The published client against the real API: README examples, sessions and errors.
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ApiError, KelletClient } from '@kellet/client';
import { expect } from 'chai';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { unique } from '../testing/fixtures.ts';

const run = promisify(execFile);

/** The program in the README and its output. */
async function readmeExample(): Promise<{ program: string; output: string }> {
  const readme = await readFile(join(checkout, 'client/README.md'), 'utf8');
  const [, program = ''] = /```ts\n([^]*?)```/.exec(readme) ?? [];
  const [, output = ''] = /It prints:\n\n```text\n([^]*?)```/.exec(readme) ?? [];
  return { program, output };
}

/** Runs a program against the stack. Returns its output. */
async function runProgram(path: string): Promise<string> {
  const { rest, email, password } = stack().info;
  const { stdout } = await run(process.execPath, [path], {
    env: { ...process.env, KELLET_URL: rest, KELLET_EMAIL: email, KELLET_PASSWORD: password },
  });
  return stdout;
}

describe('@kellet/client', () => {
  const signIn = () => KelletClient.signIn({ baseUrl: stack().info.rest }, stack().info);

  it('behaves as its README shows', async () => {
    const { program, output } = await readmeExample();
    const folder = join(checkout, '.kellet/test/client');
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'readme.ts'), program);
    expect(await runProgram(join(folder, 'readme.ts'))).to.equal(output);
  });

  it('is a package that other projects can compile against strictly and run', async () => {
    const { program, output } = await readmeExample();
    const { stdout: tarball } = await run(process.execPath, [join(checkout, 'packaging/packages.ts'), 'client']);
    const project = await mkdtemp(join(tmpdir(), 'kellet-client-'));
    try {
      // Installed like npm would, without a registry.
      const modules = join(project, 'node_modules');
      await mkdir(join(modules, '@kellet/client'), { recursive: true });
      await run('tar', ['-xzf', tarball.trim(), '--strip-components=1', '-C', join(modules, '@kellet/client')]);
      const { dependencies } = JSON.parse(await readFile(join(modules, '@kellet/client/package.json'), 'utf8')) as {
        dependencies: Record<string, string>;
      };
      for (const name of [...Object.keys(dependencies), '@types/node', 'undici-types']) {
        const places = ['client/node_modules', 'node_modules'].map((folder) => join(checkout, folder, name));
        await mkdir(join(modules, name, '..'), { recursive: true });
        await symlink(places.find((place) => existsSync(place)) ?? '', join(modules, name));
      }
      const options = { module: 'nodenext', strict: true, exactOptionalPropertyTypes: true, types: ['node'] };
      await writeFile(join(project, 'package.json'), '{"type":"module"}');
      await writeFile(join(project, 'tsconfig.json'), JSON.stringify({ compilerOptions: options }));
      await writeFile(join(project, 'main.ts'), program);
      await run('tsc', ['--project', project]).catch((error: Error & { stdout?: string }) => {
        throw new Error(error.stdout);
      });
      expect(await runProgram(join(project, 'main.js'))).to.equal(output);

      // The compiler rejects a field that is not in the contract.
      const misspelt = program.replace('device_name:', 'devicename:');
      await writeFile(join(project, 'main.ts'), misspelt);
      const refused = await run('tsc', ['--project', project, '--noEmit']).catch((error: { stdout?: string }) => error);
      expect(refused.stdout).to.match(/main\.ts.*'devicename' does not exist/);
    } finally {
      await rm(project, { recursive: true });
    }
  });

  it('continues a session after its access token becomes invalid', async () => {
    const { rest, email, password } = stack().info;
    const tokens = await new KelletClient({ baseUrl: rest }).post('/api/v1/auth/login', { body: { email, password } });
    const client = KelletClient.resume({ baseUrl: rest }, { ...tokens, access_token: 'no longer valid' });
    const { tenant_id } = await client.get('/api/v1/tenant');
    expect(tenant_id).to.equal(stack().info.tenant);
    expect(await client.bearer()).not.to.equal(tokens.access_token);
  });

  it('pages through lists of any length', async () => {
    const client = await signIn();
    const tag = unique('page');
    for (const index of [1, 2, 3, 4, 5]) {
      await client.post('/api/v1/devices', { body: { hardware_id: `${tag}-${index}`, tags: { tag } } });
    }
    const found: string[] = [];
    const query = { page_size: 2, tag: [`tag=${tag}`] };
    for await (const device of client.list('/api/v1/devices', 'devices', { params: { query } })) {
      found.push(device.hardware_id);
    }
    expect(found.sort()).to.deep.equal([1, 2, 3, 4, 5].map((index) => `${tag}-${index}`));
  });

  it('throws errors with the codes of the API', async () => {
    const client = await signIn();
    const name = unique('client');
    await client.post('/api/v1/profiles', { body: { name } });
    const errors = await Promise.all([
      client.post('/api/v1/profiles', { body: { name } }).catch((error: unknown) => error),
      client.post('/api/v1/profiles', { body: { name: '' } }).catch((error: unknown) => error),
      new KelletClient({ baseUrl: stack().info.rest }).get('/api/v1/profiles').catch((error: unknown) => error),
    ]);
    expect(errors.map((error) => error instanceof ApiError && `${error.status} ${error.code}`)).to.deep.equal([
      '409 ALREADY_EXISTS',
      '400 INVALID_ARGUMENT',
      '401 UNAUTHENTICATED',
    ]);
  });
});

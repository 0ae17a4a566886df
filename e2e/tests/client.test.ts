// The published client against the real API: what its README shows, its session, its errors.
import { execFile } from 'node:child_process';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ApiError, KelletClient } from '@kellet/client';
import { expect } from 'chai';
import { unique } from '../src/fixtures.ts';
import { checkout } from '../stack/paths.ts';
import { stack } from '../stack/test-stack.ts';

const run = promisify(execFile);

describe('@kellet/client', () => {
  const signIn = () => KelletClient.signIn({ baseUrl: stack().info.rest }, stack().info);

  it('does what its README shows', async () => {
    const readme = await readFile(join(checkout, 'client/README.md'), 'utf8');
    const [, program = ''] = /```ts\n([^]*?)```/.exec(readme) ?? [];
    const [, output = ''] = /It prints:\n\n```text\n([^]*?)```/.exec(readme) ?? [];
    const folder = join(checkout, '.kellet/test/client');
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'readme.ts'), program);
    const { rest, email, password } = stack().info;
    const { stdout } = await run(process.execPath, [join(folder, 'readme.ts')], {
      env: { ...process.env, KELLET_URL: rest, KELLET_EMAIL: email, KELLET_PASSWORD: password },
    });
    expect(stdout).to.equal(output);
  });

  it('goes on with a session after its access token is void', async () => {
    const { rest, email, password } = stack().info;
    const tokens = await new KelletClient({ baseUrl: rest }).post('/api/v1/auth/login', { body: { email, password } });
    const client = KelletClient.resume({ baseUrl: rest }, { ...tokens, access_token: 'no longer good' });
    const { tenant_id } = await client.get('/api/v1/tenant');
    expect(tenant_id).to.equal(stack().info.tenant);
    expect(await client.bearer()).not.to.equal(tokens.access_token);
  });

  it('pages through a list of any length', async () => {
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

  it('throws the codes of the API', async () => {
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

// The local stack: one file has all addresses, dead processes are restarted, and nothing is left running after a stop.
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import type { DevInfo } from '../../dev/stack/dev-info.ts';
import { checkout, removeReachableFolder } from '../../dev/stack/paths.ts';
import { processIdentity } from '../../dev/stack/processes/process-table.ts';
import type { ProcessName } from '../../dev/stack/stack.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';

const readInfo = async (path: string) => JSON.parse(await readFile(path, 'utf8')) as DevInfo;

/** Returns the status of a sign-in. */
async function signIn(rest: string, account: { email: string; password: string; tenant?: string }): Promise<number> {
  const body = { email: account.email, password: account.password };
  const response = await fetch(`${rest}/api/v1/auth/login`, { method: 'POST', body: JSON.stringify(body) });
  return response.status;
}

describe('local stack', function () {
  this.timeout(240_000);

  it('writes all addresses to dev.json, readable only by its owner', async () => {
    const { infoPath, info } = stack();
    expect((await stat(infoPath)).mode & 0o777).to.equal(0o600);
    const written = await readInfo(infoPath);
    expect(written).to.deep.equal(info);
    expect(Object.keys(written.pids)).to.include.members([
      ...['apiserver', 'operator', 'devchain', 'nats', 'postgres', 'etcd', 'kubeApiserver'],
    ]);
    for (const [name, pid] of Object.entries(written.pids)) expect(processIdentity(pid), name).to.be.a('string');
    for (const url of [`${written.rest}/readyz`, `${written.metrics}/metrics`, `${written.devchain}/dev/state`]) {
      expect((await fetch(url)).status, url).to.equal(200);
    }
  });

  it('accepts the administrators of both tenants and the platform, but no wrong password', async () => {
    const { rest, email, password, other, platform } = stack().info;
    for (const account of [{ email, password }, other, platform]) {
      expect(await signIn(rest, account), account.email).to.equal(200);
    }
    expect(await signIn(rest, { email, password: other.password })).to.equal(401);
  });

  it('serves the files of the artifacts folder', async () => {
    const { artifactsFolder, info } = stack();
    await writeFile(join(artifactsFolder, 'local-stack-test.bin'), 'firmware');
    expect(await (await fetch(`${info.artifacts}/local-stack-test.bin`)).text()).to.equal('firmware');
  });

  for (const [name, key] of [
    ['operator', 'operator'],
    ['devchain', 'devchain'],
    ['nats', 'nats'],
    ['apiserver', 'apiserver'],
    ['postgres', 'postgres'],
    ['kube-apiserver', 'kubeApiserver'],
  ] as [ProcessName, string][]) {
    it(`restarts ${name} within 2 s of kill -9, and writes its new pid to dev.json`, async () => {
      const { infoPath } = stack();
      const before = (await readInfo(infoPath)).pids[key]!;
      await stack().kill(name);
      const pid = await waitUntil(
        async () => {
          const now = (await readInfo(infoPath)).pids[key];
          return now !== before && now;
        },
        { what: `a new process of ${name}`, timeoutMilliseconds: 2_000, intervalMilliseconds: 20 },
      );
      expect(processIdentity(pid)).to.be.a('string');
      await stack().waitReady(name, 120_000);
      await stack().waitReady('apiserver', 120_000);
    });
  }

  it('keeps its state throughout', async () => {
    const { rest, email, password } = stack().info;
    const status = () => signIn(rest, { email, password });
    await waitUntil(async () => (await status()) === 200, { what: 'sign-in' });
  });
});

describe('make dev', function () {
  this.timeout(300_000);
  let folder: string;
  const running: ChildProcess[] = [];

  before(async () => (folder = await mkdtemp(join(checkout, '.kellet', 'dev-test-'))));
  after(async () => {
    for (const child of running) child.kill('SIGKILL');
    await removeReachableFolder(join(folder, 'postgres'));
    await rm(folder, { recursive: true, force: true });
  });

  /** Runs the command. Resolves when it has printed `ready` or exited. */
  async function runDev(stateFolder: string) {
    const child = spawn(process.execPath, [join(checkout, 'dev/stack/main.ts'), '--state', stateFolder], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    running.push(child);
    const output = { out: '', error: '' };
    child.stdout.on('data', (data: Buffer) => (output.out += data.toString()));
    child.stderr.on('data', (data: Buffer) => (output.error += data.toString()));
    const ended = new Promise<number | null>((resolve) => child.once('exit', resolve));
    const ready = waitUntil(() => output.out.split('\n').includes('ready') || child.exitCode !== null, {
      what: 'make dev',
      timeoutMilliseconds: 180_000,
    });
    await ready;
    return { child, output, ended };
  }

  it('refuses to run twice on the same state, with a clear message', async () => {
    const { output, ended } = await runDev(join(stack().infoPath, '..'));
    expect(await ended).to.equal(1);
    expect(output.error).to.include('is running');
    expect(processIdentity(stack().info.pids.apiserver!)).to.be.a('string');
  });

  it('runs beside another stack, keeps its state between runs, and leaves nothing running', async () => {
    const first = await runDev(folder);
    expect(first.output.out, first.output.error).to.include('ready');
    const info = await readInfo(join(folder, 'dev.json'));
    expect(info.rest).to.not.equal(stack().info.rest);
    expect(await signIn(info.rest, info)).to.equal(200);
    first.child.kill('SIGTERM');
    expect(await first.ended).to.equal(0);
    for (const [name, pid] of Object.entries(info.pids)) expect(processIdentity(pid), name).to.equal(undefined);
    expect(await stat(join(folder, 'dev.json')).catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ENOENT');

    // Killed this time: the watchdog and the next run clean up.
    const second = await runDev(folder);
    const again = await readInfo(join(folder, 'dev.json'));
    expect({ ...again, pids: {} }).to.deep.equal({ ...info, pids: {} });
    expect(await signIn(again.rest, info)).to.equal(200);
    second.child.kill('SIGKILL');
    for (const [name, pid] of Object.entries(again.pids)) {
      await waitUntil(() => processIdentity(pid) === undefined, {
        what: `the end of ${name}`,
        timeoutMilliseconds: 60_000,
      });
    }
  });
});

// The trial in docs/install.md, as a new user runs it: its commands are taken from the page and run one after the other in an
// empty cluster, with nothing else installed. Then what the page promises of TLS is checked.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { connect } from 'node:tls';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { systemNamespace } from '../../dev/stack/cluster/resources.ts';
import { type NodeCluster, startNodeCluster } from '../../dev/stack/node/node.ts';
import { checkout, defaultStateFolder } from '../../dev/stack/paths.ts';
import { helmProgram, kubectlProgram } from '../../dev/stack/programs/binaries.ts';

const execute = promisify(execFile);
const state = join(defaultStateFolder, 'guide-test');
const trial = join(checkout, '.kellet/trial');
const report = (line: string) => console.log(`    ${line}`);

/** Returns the commands of a section of docs/install.md. */
async function commandsOf(title: string): Promise<string[]> {
  const page = await readFile(join(checkout, 'docs/install.md'), 'utf8');
  const section = page.split(/^## /m).find((text) => text.startsWith(`${title}\n`));
  if (section === undefined) throw new Error(`docs/install.md has no section ${title}`);
  return [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, commands]) => commands!);
}

describe('the installation guide', function () {
  this.timeout(30 * 60_000);
  let cluster: NodeCluster;

  before(async () => {
    const helm = await helmProgram(report);
    const kubectl = await kubectlProgram(report);
    await rm(trial, { recursive: true, force: true });
    cluster = await startNodeCluster(state, report);
    const programs = join(state, 'programs');
    await mkdir(programs);
    await symlink(helm, join(programs, 'helm'));
    await symlink(kubectl, join(programs, 'kubectl'));
  });
  after(async function () {
    await cluster?.stop();
    await rm(trial, { recursive: true, force: true });
  });

  it('leads from nothing to an installation with TLS and a rollout that has paused itself', async () => {
    const commands = await commandsOf('A trial from nothing to a paused rollout');
    expect(commands).to.have.length(6);
    const environment = {
      ...process.env,
      KUBECONFIG: cluster.kubeconfig,
      CONTAINERD_ADDRESS: cluster.containerSocket,
      PATH: `${join(state, 'programs')}:${process.env.PATH}`,
    };
    // In a group of its own, which ends with it: what the page starts in the background would stay.
    const shell = spawn('bash', ['-euo', 'pipefail', '-c', commands.join('\n')], {
      ...{ cwd: checkout, env: environment, detached: true, stdio: ['ignore', 'pipe', 'pipe'] },
    });
    let output = '';
    for (const stream of [shell.stdout, shell.stderr]) stream.on('data', (part: Buffer) => (output += String(part)));
    const [code] = (await once(shell, 'exit')) as [number | null];
    try {
      process.kill(-shell.pid!, 'SIGKILL');
    } catch {
      // It has failed before it started anything.
    }
    expect(code, output.slice(-4000)).to.equal(0);
    expect(output).to.match(/Phase: +Succeeded/);
    expect(output).to.match(/weather-station-2\.0\.0 +Paused/);
    expect(output).to.contain('FailureThresholdExceeded');
  });

  it('gives an internal port that refuses everyone without a certificate of its authority', async () => {
    const selector = 'app.kubernetes.io/component=apiserver';
    const { items } = await cluster.kubectl
      .in(systemNamespace)
      .json<{ items: { status: { podIP: string } }[] }>(['get', 'pods', '--selector', selector]);
    const file = (name: string) => readFile(join(trial, name));
    const outcome = async (certificate?: string): Promise<string> => {
      const socket = connect({
        ...{ host: items[0]!.status.podIP, port: 9091, ALPNProtocols: ['h2'], ca: await file('control-authority.crt') },
        ...{ checkServerIdentity: () => undefined },
        ...(certificate && { cert: await file(`${certificate}.crt`), key: await file(`${certificate}.key`) }),
      });
      return new Promise((resolve) => {
        // The server's first frame, which it sends only to a client that it has accepted.
        socket.once('data', () => resolve('accepted'));
        socket.once('error', ({ message }) => resolve(message));
        socket.once('close', () => resolve('closed'));
      }).finally(() => socket.destroy()) as Promise<string>;
    };
    expect(await outcome('control')).to.equal('accepted');
    expect(await outcome('public')).not.to.equal('accepted');
    expect(await outcome()).not.to.equal('accepted');
  });

  it('speaks only TLS where users and devices connect', async () => {
    const service = await cluster.kubectl
      .in(systemNamespace)
      .json<{ spec: { clusterIP: string } }>(['get', 'service', 'kellet-apiserver']);
    const url = `${service.spec.clusterIP}:8080/readyz`;
    const plain = await execute('curl', ['--silent', '--max-time', '10', `http://${url}`]).catch(() => 'refused');
    expect(plain).to.equal('refused');
    const name = 'kellet-apiserver.kellet-system.svc';
    const { stdout } = await execute('curl', [
      ...['--silent', '--show-error', '--fail', '--cacert', join(trial, 'public-authority.crt')],
      ...['--resolve', `${name}:8080:${service.spec.clusterIP}`, `https://${name}:8080/readyz`],
    ]);
    expect(stdout).to.contain('"postgres":"healthy"');
  });
});

// `make cluster ENGINE=kwok`: the command itself, and the chart in a cluster whose pods are pretended. It needs neither root nor
// a container engine, and what it shows is what Kubernetes makes of the chart: objects, volumes, Secrets, replicas, budgets.
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { Kubectl } from '../../dev/clients/kubectl.ts';
import { checkout, defaultStateFolder } from '../../dev/stack/paths.ts';
import { helmProgram, kubectlProgram } from '../../dev/stack/programs/binaries.ts';

const execute = promisify(execFile);
const state = join(defaultStateFolder, 'pretended-test');
const report = (line: string) => console.log(`    ${line}`);

interface Deployment {
  metadata: { name: string };
  spec: { replicas: number };
  status: { readyReplicas?: number };
}

describe('a cluster whose pods are pretended', function () {
  this.timeout(20 * 60_000);
  let command: ReturnType<typeof spawn>;
  let kubectl: Kubectl;
  let kubeconfig = '';

  before(async () => {
    command = spawn(process.execPath, ['dev/stack/pods/main.ts', '--engine', 'kwok', '--state', state], {
      ...{ cwd: checkout, stdio: ['ignore', 'pipe', 'inherit'] },
    });
    for await (const line of createInterface(command.stdout!)) {
      kubeconfig = /^export KUBECONFIG=(.*)$/.exec(line)?.[1] ?? kubeconfig;
      if (line === 'ready') break;
    }
    expect(kubeconfig, 'the command has ended before it was ready').not.to.equal('');
    kubectl = new Kubectl(await kubectlProgram(report), kubeconfig, 'kellet-system');
  });
  after(() => void command?.kill('SIGKILL'));

  it('has every pod of the chart ready, with its servers for trials and a Deployment for each target', async () => {
    const helm = await helmProgram(report);
    const values = [
      'platformAdmin.email=admin@example.com,secrets.generate=true,targets=split',
      'postgresql.enabled=true,nats.enabled=true,postgresql.storage.enabled=false,nats.storage.enabled=false',
    ].flatMap((list) => ['--set', list]);
    await execute(helm, [
      ...['install', 'kellet', join(checkout, 'charts/kellet'), '--namespace', 'kellet-system', '--create-namespace'],
      ...['--kubeconfig', kubeconfig, ...values, '--wait', '--timeout', '5m'],
    ]);
    const { items } = await kubectl.json<{ items: Deployment[] }>(['get', 'deployments']);
    const names = items.map(({ metadata }) => metadata.name);
    expect(names).to.include.members(['kellet-gateway', 'kellet-telemetry', 'kellet-chain-anchor', 'kellet-operator']);
    for (const { metadata, spec, status } of items) expect(status.readyReplicas, metadata.name).to.equal(spec.replicas);
    await kubectl.wait(
      ['statefulset/kellet-postgresql', 'statefulset/kellet-nats'],
      'jsonpath={.status.readyReplicas}=1',
    );
  });

  it('is gone after an interrupt', async () => {
    command.kill('SIGINT');
    const [code] = (await once(command, 'exit')) as [number | null];
    expect(code).to.equal(0);
    const folder = await access(`${state}-kwok`).then(
      () => 'kept',
      () => 'removed',
    );
    expect(folder).to.equal('removed');
    await kubectl.run(['get', 'nodes', '--request-timeout=5s']).then(
      () => expect.fail('the API server still responds'),
      () => undefined,
    );
  });
});

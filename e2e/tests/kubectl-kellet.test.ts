// The plugin against the real stack: every command, run by a user who may only read the namespace and act as
// kellet-cli.
import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { parse, parseAllDocuments, stringify } from 'yaml';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { fetchHeadersFile, verifyOffline } from '../../dev/clients/verify-command.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, kubectl, makeArtifact, makeFleet, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';
import { callPlugin, pluginProgram } from '../testing/plugin.ts';
import { type PortForwardingApi, startPortForwardingApi } from '../testing/port-forwarding-api.ts';

const execute = promisify(execFile);
const apiVersion = 'kellet.dev/v1alpha1';
const rbac = 'rbac.authorization.k8s.io';

interface Config {
  clusters: { name: string; cluster: { server: string } }[];
  users: { name: string; user: object }[];
  contexts: { name: string; context: { user: string; namespace?: string } }[];
}

describe('kubectl kellet', function () {
  this.timeout(120_000);
  let kube: Kubectl;
  let folder: string;
  let kubeconfig: string;

  const plugin = (
    args: readonly string[],
    options: { kubeconfig?: string; environment?: Record<string, string> } = {},
  ) => callPlugin(args, { kubeconfig, ...options });
  /** Runs it successfully and returns the output. */
  const done = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await plugin(args);
    expect(code, `${args.join(' ')}: ${stderr}`).to.equal(0);
    return stdout;
  };
  const otaPackage = (name: string, version: string, deviceType: string, artifact: object) => ({
    apiVersion,
    kind: 'OtaPackage',
    metadata: { name },
    spec: { type: 'Firmware', version, artifact, compatibility: { deviceType } },
  });
  const rolloutOf = (name: string, profile: string, fields: object = {}) => ({
    apiVersion,
    kind: 'OtaRollout',
    metadata: { name },
    spec: { packageRef: { name }, targetProfileRef: { name: profile }, canaryPercent: 20, ...fields },
  });
  /** Creates a package, a profile with a fleet, and, if `fields` are given, a rollout. */
  const prepare = async (devices: number, fields?: object) => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    const fleet = await makeFleet(rest, profile.profile_id, devices);
    const name = unique('update');
    const { uri, sha256, sizeBytes } = await makeArtifact(20_000);
    await kube.apply(otaPackage(name, '1.0.0', profile.type, { uri, sha256, sizeBytes }));
    await kube.wait(`otapkg/${name}`, 'condition=Ready');
    if (fields) {
      await kube.apply(rolloutOf(name, profile.name, fields));
      await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Active');
    }
    return { name, fleet, profile };
  };

  /** Returns a kubeconfig with a user's token for the tenant's namespace, optionally with another server address. */
  const writeKubeconfig = async (file: string, token: string, server?: string) => {
    const config = parse(await readFile(stack().info.kubeconfig, 'utf8')) as Config;
    config.users = [{ name: 'someone', user: { token } }];
    for (const { context } of config.contexts) Object.assign(context, { user: 'someone', namespace: kube.namespace });
    if (server)
      config.clusters = config.clusters.map(({ name }) => ({
        name,
        // The Kubernetes client library requires this for plain HTTP.
        cluster: { server, 'insecure-skip-tls-verify': true },
      }));
    const path = join(folder, file);
    await writeFile(path, stringify(config), { mode: 0o600 });
    return path;
  };
  /** Returns the token of a user (represented by a service account) with these roles in namespaces. */
  const person = async (roles: readonly (readonly [string, 'ClusterRole' | 'Role', string])[]) => {
    const name = unique('person');
    await kube.apply({ apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name } });
    for (const [namespace, kind, role] of roles) {
      await kube.in(namespace).apply({
        apiVersion: `${rbac}/v1`,
        kind: 'RoleBinding',
        metadata: { name: `${name}-${role}` },
        roleRef: { apiGroup: rbac, kind, name: role },
        subjects: [{ kind: 'ServiceAccount', name, namespace: kube.namespace }],
      });
    }
    return kube.run(['create', 'token', name]);
  };

  before(async () => {
    kube = await kubectl();
    folder = await mkdtemp(join(tmpdir(), 'kubectl-kellet-'));
    const token = await person([
      [kube.namespace, 'ClusterRole', 'view'],
      [kube.namespace, 'Role', 'use-kellet-cli'],
    ]);
    kubeconfig = await writeKubeconfig('someone.kubeconfig', token);
  });
  after(() => rm(folder, { recursive: true, force: true }));

  it('plans, shows, pauses, resumes, retries, skips and cancels a rollout', async () => {
    const { name, profile } = await prepare(5);
    const manifest = JSON.stringify(rolloutOf(name, profile.name, { steps: [{ percent: 100, soakSeconds: 60 }] }));
    const environment = { PATH: process.env.PATH, KUBECONFIG: kubeconfig };
    const planning = execute(process.execPath, [pluginProgram, 'plan', '-f', '-', '-o', 'json'], { env: environment });
    planning.child.stdin!.end(manifest);
    const planned = await planning;
    expect(planned.stderr).to.equal('');
    const plan = JSON.parse(planned.stdout) as {
      eligible: number;
      steps: { scheduled: number; device_ids: string[] }[];
    };
    expect(plan.eligible).to.equal(5);
    expect(plan.steps.map(({ scheduled }) => scheduled)).to.deep.equal([1, 5]);
    const file = join(folder, 'rollout.yaml');
    await writeFile(file, manifest);
    expect(await done('plan', '-f', file)).to.match(/canary +20% +1 +1 +at once/);

    await kube.run(['apply', '-f', file]);
    await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Active');
    expect(await done('status', name)).to.match(new RegExp(`otarollout/${name} +Active`));
    const listed = JSON.parse(await done('devices', name, '-o', 'json')) as { devices: { device_id: string }[] };
    expect(listed.devices.map(({ device_id }) => device_id)).to.deep.equal(plan.steps[0]!.device_ids);
    expect(await done('devices', name, '--state', 'scheduled')).to.contain(plan.steps[0]!.device_ids[0]);

    expect(await done('pause', name)).to.contain(`otarollout.kellet.dev/${name} paused`);
    await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Paused');
    const paused = await done('status', `otarollout/${name}`);
    expect(paused).to.match(/Paused: +OperatorPause/);
    expect(paused).to.contain(`kubectl kellet resume ${name}`);
    const resumed = JSON.parse(await done('resume', name, '--canary-percent', '40', '-o', 'json')) as Rollout;
    expect(resumed).to.include({ status: 'active', effective_percent: 40 });
    // Scheduling the second device also changes the rollout, which a retry at the same moment takes for its own doing.
    await kube.wait(`otaro/${name}`, 'jsonpath={.status.counts.scheduled}=2');
    expect(await done('retry', name)).to.contain(`otarollout.kellet.dev/${name} has nothing to retry`);
    const [device] = listed.devices;
    expect(await done('skip', name, '--device', device!.device_id)).to.contain('devices skipped');
    expect(await done('devices', name, '--state', 'skipped', '-o', 'name')).to.equal(`${device!.device_id}\n`);
    const approved = await plugin(['approve', name]);
    expect(approved.code, approved.stderr).to.equal(5);
    const noWayBack = await plugin(['rollback', name]);
    expect(noWayBack.code).to.equal(5);
    expect(noWayBack.stderr).to.contain('rollback');
    expect(await done('cancel', name)).to.contain('cancelled');
    expect((await plugin(['pause', name])).code).to.equal(5);
    await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Completed');
    expect(await done('status', 'rollouts', '-o', 'wide')).to.match(new RegExp(`${name} +Completed \\(Cancelled\\)`));
  });

  it('rolls back and approves', async () => {
    const before = unique('before');
    const { uri, sha256, sizeBytes } = await makeArtifact(20_000);
    // For devices of any type, because the profile is made later.
    const spec = { type: 'Firmware', version: '0.9.0', artifact: { uri, sha256, sizeBytes } };
    await kube.apply({ apiVersion, kind: 'OtaPackage', metadata: { name: before }, spec });
    await kube.wait(`otapkg/${before}`, 'condition=Ready');
    const { name } = await prepare(4, {
      rollbackPackageRef: { name: before },
      canaryPercent: 25,
      steps: [{ percent: 100, approval: true }],
    });
    expect(await done('rollback', name)).to.contain('rolling back');
    const waiting = await prepare(2, { canaryPercent: 50, steps: [{ percent: 100, approval: true }] });
    waiting.fleet.start();
    try {
      await kube.wait(`otaro/${waiting.name}`, 'jsonpath={.status.pauseConditions[0].reason}=StepApproval');
      expect(await done('status', waiting.name)).to.contain(`kubectl kellet approve ${waiting.name}`);
      expect(await done('approve', waiting.name)).to.contain('approved');
      const watched = await plugin(['status', waiting.name, '--watch']);
      expect(watched.code).to.equal(0);
      expect(watched.stdout.trimEnd().split('\n').at(-1)).to.match(/Completed, 2\/2 ok/);
    } finally {
      await waiting.fleet.stop();
    }
  });

  it('watches a rollout to its end, also if it fails', async () => {
    const { name, fleet } = await prepare(4, { canaryPercent: 50 });
    const watching = plugin(['status', name, '--watch']);
    fleet.start();
    try {
      await kube.wait(`otaro/${name}`, 'jsonpath={.status.counts.succeeded}=2');
    } finally {
      await fleet.stop();
    }
    await done('cancel', name);
    const { code, stdout } = await watching;
    const lines = stdout.trimEnd().split('\n');
    expect(code).to.equal(7);
    expect(lines[0]).to.match(new RegExp(`^${name}: Active, `));
    expect(lines.some((line) => line.includes('2/4 ok'))).to.equal(true);
    expect(lines.at(-1)).to.match(/Completed \(Cancelled\)/);
    // Files contain neither escape sequences nor repeated lines.
    // eslint-disable-next-line no-control-regex -- matches control characters on purpose
    expect(stdout).not.to.match(/\u001b/);
    expect(new Set(lines).size).to.equal(lines.length);
  });

  it('draws bars on a terminal, and colours unless NO_COLOR is set', async () => {
    const { name } = await prepare(2, { canaryPercent: 50 });
    const onTerminal = (environment: Record<string, string>) =>
      execute(
        'script',
        [
          '--quiet',
          '--return',
          '--command',
          `timeout -s INT 6 ${process.execPath} ${pluginProgram} status ${name} -w`,
          '/dev/null',
        ],
        {
          env: {
            PATH: process.env.PATH,
            HOME: folder,
            TERM: 'xterm',
            LANG: 'C.UTF-8',
            KUBECONFIG: kubeconfig,
            ...environment,
          },
        },
      ).catch((error: { stdout: string }) => error);
    const [coloured, plain] = await Promise.all([onTerminal({}), onTerminal({ NO_COLOR: '1' })]);
    for (const { stdout } of [coloured, plain]) {
      expect(stdout).to.contain('░');
      // Redrawn in place, because ages advance.
      expect(stdout).to.contain('\u001b[J');
    }
    expect(coloured.stdout).to.contain('\u001b[34m');
    expect(plain.stdout).not.to.contain('\u001b[34m');
  });

  it('shows everything from the cluster alone, in kubectl’s output formats', async () => {
    const { name, profile } = await prepare(0);
    const all = await done('status');
    for (const heading of ['ROLLOUTS', 'PACKAGES', 'DEVICE PROFILES']) expect(all).to.contain(heading);
    expect(await done('status', 'package/' + name)).to.match(/Ready: +True[\s\S]*Conditions:/);
    const list = JSON.parse(await done('status', 'profiles', '-o', 'json')) as {
      kind: string;
      items: { kind: string }[];
    };
    expect(list.kind).to.equal('List');
    expect(new Set(list.items.map(({ kind }) => kind))).to.deep.equal(new Set(['DeviceProfile']));
    expect(await done('status', 'profiles', '-o', 'name')).to.contain(`deviceprofile.kellet.dev/${profile.name}`);
    const [document] = parseAllDocuments(await done('status', `otapkg/${name}`, '-o', 'yaml'));
    expect(document!.toJS()).to.deep.include({ kind: 'OtaPackage' });
    const nowhere = await plugin(['pause', 'any', '--server', 'http://127.0.0.1:1']);
    expect(nowhere.code, 'the rollout does not exist').to.equal(3);
    // While the data plane is unavailable, the cluster's state is still shown.
    expect((await plugin(['status', '--server', 'http://127.0.0.1:1'])).code).to.equal(0);
    const away = await plugin(['proof', 'a'.repeat(64)], { environment: { KELLET_SERVER: 'http://127.0.0.1:1' } });
    expect(away.code).to.equal(6);
    expect(away.stderr).to.match(/cannot be reached: connection refused\n.*kubectl kellet status/);
  });

  it('fetches proofs and bundles for offline verification', async () => {
    const { fleet } = await prepare(1);
    const [device] = fleet.devices;
    const point = {
      device_id: device!.deviceId,
      timestamp: new Date().toISOString(),
      numeric_values: { t: Math.random() },
    };
    await device!.rest.post('/api/v1/telemetry', { points: [point] });
    const hash = await waitUntil(
      async () => (await done('proof', device!.deviceId, '-o', 'name')).trim() || undefined,
      { what: 'a proof', timeoutMilliseconds: 60_000 },
    );
    expect(hash).to.match(/^[0-9a-f]{64}$/);
    expect(await done('proof', device!.deviceId)).to.contain(hash);
    expect(await done('proof', hash)).to.match(/Transaction: +[0-9a-f]{64}/);
    const file = join(folder, 'bundle.json');
    const written = await plugin(['proof', `${device!.deviceId}/${hash}`, '--bundle', file]);
    expect(written.code).to.equal(0);
    expect(written.stderr).to.contain('kellet-verify');
    const bundle = JSON.parse(await readFile(file, 'utf8')) as { schema_version: string; data_hash: string };
    expect(bundle).to.include({ schema_version: '1.0', data_hash: hash });
    expect(JSON.parse(await done('proof', hash, '-b', '-'))).to.deep.include({ data_hash: hash });
    const [other] = (await prepare(1)).fleet.devices;
    expect((await plugin(['proof', `${other!.deviceId}/${hash}`])).code).to.equal(1);
    expect((await plugin(['proof', 'b'.repeat(64)])).code).to.equal(3);
  });

  it('saves the proof of a rollout, which kellet-verify judges offline', async () => {
    const { name, fleet } = await prepare(6, { canaryPercent: 100 });
    const file = join(folder, 'rollout.ndjson');
    expect(await done('proof', 'rollout', name)).to.equal('0 results, 0 anchored, 0 not yet\n');
    fleet.start();
    try {
      await kube.wait(`otaro/${name}`, 'jsonpath={.status.phase}=Completed');
    } finally {
      await fleet.stop();
    }
    await waitUntil(
      async () => (await done('proof', 'rollout', name)) === '6 results, 6 anchored, 0 not yet\n' || undefined,
      { what: 'the proof of every result', timeoutMilliseconds: 60_000 },
    );
    const written = await plugin(['proof', 'rollout', name, '-o', file]);
    expect(written.code, written.stderr).to.equal(0);
    expect(written.stderr).to.contain('kellet-verify');
    const [firstPage] = (await readFile(file, 'utf8')).split('\n');
    const { block_header_chain: chain } = JSON.parse(firstPage!) as { block_header_chain: { height: number }[] };
    const headers = join(folder, 'headers.txt');
    await writeFile(headers, await fetchHeadersFile(stack().info.devchain!, chain[0]!.height));
    const proven = await verifyOffline(file, '--headers', headers);
    expect(proven.code, proven.stdout).to.equal(0);
    for (const device of fleet.devices) {
      expect(proven.stdout).to.match(new RegExp(`^ok +${device.deviceId} \\S+ successful 1\\.0\\.0 block \\d+$`, 'm'));
    }
    const text = await readFile(file, 'utf8');
    const forged = text.replace('"kellet.ota.result\\":\\"successful', '"kellet.ota.result\\":\\"failure');
    expect(forged).to.not.equal(text);
    await writeFile(file, forged);
    const refuted = await verifyOffline(file, '--headers', headers);
    expect(refuted.code).to.equal(1);
    expect(refuted.stdout.match(/^FAIL /gm)).to.have.length(1);
    expect((await done('proof', 'rollout', name, '-o', 'name')).trim().split('\n')).to.have.length(6);
    expect((await plugin(['proof', 'rollout', 'unknown'])).code).to.equal(3);
    expect((await plugin(['proof', 'rollout', name, '-o', join(folder, 'no/such/file')])).code).to.equal(1);
    // The devices' histories say the same, and the points are theirs.
    const rest = await admin();
    const [device] = fleet.devices;
    const { events } = await rest.get<{ events: { kind: string; from: string; to: string }[] }>(
      `/api/v1/devices/${device!.deviceId}/history`,
    );
    expect(events.find(({ kind }) => kind === 'firmware')).to.include({ to: '1.0.0' });
    const latest = await rest.get<{ string_values: Record<string, string> }>(
      `/api/v1/telemetry/${device!.deviceId}/latest`,
    );
    expect(latest.string_values['kellet.ota.result']).to.equal('successful');
  });

  it('uploads an artifact resumably, and rejects a wrong file before sending', async () => {
    const bytes = randomBytes(2_500_000);
    const file = join(folder, 'firmware.bin');
    await writeFile(file, bytes);
    const sha256 = createHash('sha256').update(bytes).digest('hex');
    const name = unique('uploaded');
    await kube.apply(otaPackage(name, '1.0.0', name, { uri: 'upload://', sha256, sizeBytes: bytes.length }));
    await kube.wait(`otapkg/${name}`, 'jsonpath={.status.packageId}');
    const { status } = await kube.json<{ status: { packageId: string } }>(['get', 'otapkg', name]);
    const wrong = join(folder, 'wrong.bin');
    await writeFile(wrong, bytes.subarray(1));
    const refused = await plugin(['upload', name, wrong]);
    expect(refused.code).to.equal(5);
    expect(refused.stderr).to.contain(`the manifest says ${bytes.length} bytes`);
    // An earlier upload was interrupted.
    const rest = await admin();
    const first = await fetch(`${rest.base}/api/v1/ota/packages/${status.packageId}/artifact`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${rest.token}`, 'content-range': `bytes 0-1048575/${bytes.length}` },
      body: bytes.subarray(0, 1_048_576),
    });
    expect(first.status).to.equal(200);
    const { code, stdout, stderr } = await plugin(['upload', name, file, '--part-size', '1']);
    expect(code, stderr).to.equal(0);
    expect(stdout).to.equal(`otapackage.kellet.dev/${name} available\n`);
    expect(stderr).to.match(/^resuming at 1\.0 MiB\n/);
    expect(stderr).to.contain('2.4 MiB of 2.4 MiB (100 %)');
    await kube.wait(`otapkg/${name}`, 'condition=Ready');
    expect(await done('upload', `otapkg/${name}`, file)).to.contain('available');
  });

  it('reports what is missing and what to do about it', async () => {
    const { name } = await prepare(1, {});
    const cases = [
      [['pause', 'nothing'], 3, /rollout nothing not found .*\nlist them:/],
      [['pause', name, '--service-account', 'nobody'], 4, /not allowed to act as service account .*\/nobody/],
      [['status', '-n', 'default'], 4, /cannot list resource/],
      [['pause', name, '--service', 'kellet-system/kellet-apiserver'], 4, /not allowed to port-forward to Service/],
    ] as const;
    for (const run of await Promise.all(cases.map(async (each) => ({ each, ...(await plugin(each[0])) })))) {
      const [args, code, words] = run.each;
      expect(run.code, `${args.join(' ')}: ${run.stderr}`).to.equal(code);
      expect(run.stderr, args.join(' ')).to.match(words);
      expect(run.stdout).to.equal('');
    }
    // For an account without permission, the data plane names the account and the permission.
    const idle = unique('idle');
    await kube.apply(
      { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: idle } },
      {
        apiVersion: `${rbac}/v1`,
        kind: 'Role',
        metadata: { name: 'use-kellet-cli' },
        rules: [
          {
            apiGroups: [''],
            resources: ['serviceaccounts/token'],
            resourceNames: ['kellet-cli', idle],
            verbs: ['create'],
          },
        ],
      },
    );
    const denied = await plugin(['pause', name, '--service-account', idle]);
    expect(denied.code).to.equal(4);
    expect(denied.stderr).to.contain(`${idle} may not create otarollouts/pause.kellet.dev`);
    expect(denied.stderr).to.contain('kellet-operate');
  });

  it('completes in bash and in kubectl', async () => {
    const { name } = await prepare(0, {});
    const bin = join(folder, 'bin');
    await execute('mkdir', ['-p', bin]);
    await execute('ln', ['-sf', process.execPath, join(bin, 'node')]);
    await execute('ln', ['-sf', pluginProgram, join(bin, 'kubectl-kellet')]);
    await execute('ln', ['-sf', join(pluginProgram, '../../kubectl_complete-kellet'), bin]);
    await execute('ln', ['-sf', await stack().kubectl(), join(bin, 'kubectl')]);
    const environment = { PATH: `${bin}:${process.env.PATH}`, HOME: folder, KUBECONFIG: kubeconfig };
    const complete = async (...words: string[]) => {
      const script = `source <(kubectl-kellet completion bash)
        COMP_WORDS=(kubectl-kellet "$@"); COMP_CWORD=$#
        _kubectl_kellet; printf '%s\\n' "\${COMPREPLY[@]}"`;
      const { stdout } = await execute('bash', ['-c', script, 'bash', ...words], { env: environment, cwd: folder });
      return stdout.trim().split('\n');
    };
    expect(await complete('re')).to.deep.equal(['resume', 'retry']);
    expect(await complete('pause', name.slice(0, -2))).to.include(name);
    expect(await complete('devices', name, '--state', 't')).to.deep.equal(['timed_out']);
    expect(await complete('status', `otaro/${name}`)).to.include(`otaro/${name}`);
    expect(await complete('resume', '--can')).to.deep.equal(['--canary-percent']);
    await writeFile(join(folder, 'some-artifact.bin'), '');
    expect(await complete('upload', 'any', 'some-art')).to.deep.equal(['some-artifact.bin']);
    // kubectl finds the plugin by its name and calls it for completion.
    const viaKubectl = await execute('kubectl', ['__complete', 'kellet', 'pause', name.slice(0, -2)], {
      env: environment,
    });
    expect(viaKubectl.stdout.split('\n')).to.include(name);
    const { stdout } = await execute('kubectl', ['kellet', 'status', name, '-o', 'name'], { env: environment });
    expect(stdout).to.equal(`otarollout.kellet.dev/${name}\n`);
    expect((await execute('kubectl', ['kellet'], { env: environment })).stdout).to.equal(await done('help'));
    expect(await done('version')).to.match(/plugin: +v\d[\s\S]*kubernetes: v1\./);
    expect(await done('help', 'resume')).to.equal(await done('resume', '--help'));
  });

  describe('through a port-forward', () => {
    let api: PortForwardingApi;
    const service = unique('data-plane');

    before(async () => {
      api = await startPortForwardingApi(stack().info.kubeconfig, Number(new URL(stack().info.rest).port));
      const labels = { app: service };
      const port = 8080;
      const system = kube.in('kellet-system');
      await system.apply(
        { apiVersion: 'v1', kind: 'ServiceAccount', metadata: { name: 'default' } },
        {
          apiVersion: 'v1',
          kind: 'Service',
          metadata: { name: service },
          spec: { selector: labels, ports: [{ name: 'rest', port: 80, targetPort: 'rest' }] },
        },
        {
          apiVersion: 'v1',
          kind: 'Pod',
          metadata: { name: service, labels },
          spec: { containers: [{ name: 'apiserver', image: 'none', ports: [{ name: 'rest', containerPort: port }] }] },
        },
        {
          apiVersion: `${rbac}/v1`,
          kind: 'Role',
          metadata: { name: service },
          rules: [
            { apiGroups: [''], resources: ['services', 'pods'], verbs: ['get', 'list'] },
            { apiGroups: [''], resources: ['pods/portforward'], verbs: ['create'] },
          ],
        },
      );
    });
    after(async () => {
      await kube.in('kellet-system').run(['delete', 'pod,service', service, '--wait=false']);
      await api.stop();
    });

    it('connects to a ready pod of the Service, and fails while there is none', async () => {
      const { name } = await prepare(2, {});
      const token = await person([
        [kube.namespace, 'ClusterRole', 'view'],
        [kube.namespace, 'Role', 'use-kellet-cli'],
        ['kellet-system', 'Role', service],
      ]);
      const forwarding = await writeKubeconfig('forwarding.kubeconfig', token, api.url);
      const args = ['devices', name, '--service', `kellet-system/${service}`, '-o', 'name'];
      const early = await plugin(args, { kubeconfig: forwarding });
      expect(early.code, early.stderr).to.equal(6);
      expect(early.stderr).to.contain('has no ready pod');
      const conditions = [{ type: 'Ready', status: 'True' }];
      const ready = JSON.stringify({ status: { phase: 'Running', conditions } });
      await kube
        .in('kellet-system')
        .run(['patch', 'pod', service, '--subresource', 'status', '--type', 'merge', '-p', ready]);
      const { code, stdout, stderr } = await plugin(args, { kubeconfig: forwarding });
      expect(code, stderr).to.equal(0);
      expect(stdout.trim().split('\n')).to.have.length(1);
      expect(api.forwards).to.deep.equal([`kellet-system/${service}:8080`]);
    });
  });
});

// @kellet/device over each protocol, the examples of devices, and kellet-sim, against the real stack.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Device, openChild, openDevice, startImage } from '@kellet/device';
import { expect } from 'chai';
import { checkout } from '../../dev/stack/paths.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import {
  admin,
  makeArtifact,
  makePackage,
  makeProfile,
  makeTemplate,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

const protocols = ['rest', 'grpc', 'mqtt'] as const;
type Protocol = (typeof protocols)[number];

const addressOf = (protocol: Protocol): string => {
  const { rest, grpc, mqtt } = stack().info;
  return { rest, grpc: `grpc://${grpc}`, mqtt }[protocol];
};

/** Creates a profile and a template. */
async function makeScene() {
  const profile = await makeProfile(await admin());
  const { provision_key: provisionKey } = await makeTemplate(await admin(), profile.profile_id);
  return { profile, provisionKey };
}

const deviceCount = async (profileId: string): Promise<number> => {
  const query = { profile_id: profileId };
  const { total } = await (await admin()).client.get('/api/v1/devices/statistics', { params: { query } });
  return Number(total);
};

describe('@kellet/device', function () {
  this.timeout(180_000);
  let folder: string;
  beforeEach(async () => (folder = await mkdtemp(join(tmpdir(), 'kellet-device-'))));
  afterEach(() => rm(folder, { recursive: true }));

  it('loses no point while the data plane is killed, over each protocol', async () => {
    const { provisionKey } = await makeScene();
    const stop = new AbortController();
    const errors: unknown[] = [];
    const open = async (protocol: Protocol): Promise<Device> => {
      const hardware_id = unique(protocol);
      return openDevice({
        url: addressOf(protocol),
        folder: join(folder, protocol),
        claim: { provision_key: provisionKey, device_name: hardware_id, hardware_id },
        backoff: { firstMilliseconds: 200, longestMilliseconds: 1000 },
        onCommand: ({ params }) => ({ seen: params?.['value'] }),
        onError: (error) => errors.push(error),
      });
    };
    const devices = await Promise.all(protocols.map(open));
    const running = devices.map((device) => device.run(stop.signal));
    const begin = Date.UTC(2026, 0, 1);
    let count = 0;
    const recording = setInterval(() => {
      for (const device of devices) device.record({ count }, new Date(begin + count));
      count += 1;
    }, 5);
    try {
      await waitUntil(() => devices.every(({ connected }) => connected), { what: 'connections' });
      await stack().kill('apiserver');
      const before = count;
      await waitUntil(() => count > before + 100 && errors.length > 0, { what: 'points without a data plane' });
      await stack().waitReady('apiserver');
    } finally {
      clearInterval(recording);
    }
    await Promise.all(devices.map((device) => device.flush()));
    for (const { identity, telemetry } of devices) {
      expect(telemetry).to.deep.equal({ waiting: 0, dropped: 0 });
      const path = `/api/v1/telemetry/${identity.device_id}`;
      const points = await (
        await admin()
      ).list<{ timestamp: string; numeric_values: { count: number } }>(path, 'points', { page_size: 10_000 });
      expect(points.map(({ numeric_values }) => numeric_values.count)).to.deep.equal(
        Array.from({ length: count }, (_, index) => index),
      );
    }
    // Commands arrive again as well.
    for (const { identity } of devices) {
      const rest = await admin();
      const body = { method: 'look', params: { value: 7 }, persistent: true };
      const { correlation_id } = await rest.post<{ correlation_id: string }>(
        `/api/v1/devices/${identity.device_id}/rpc`,
        body,
      );
      const record = await rest.get(`/api/v1/devices/rpc/${correlation_id}`, { wait_seconds: 30 });
      expect(record).to.deep.include({ status: 'successful', response: { seen: 7 } });
    }
    stop.abort();
    expect(await Promise.all(running)).to.deep.equal(['stopped', 'stopped', 'stopped']);
    await Promise.all(devices.map((device) => device.close()));
  });

  for (const protocol of protocols) {
    it(`carries children of a gateway over ${protocol}: points, commands, attributes, updates, also after the data plane was killed`, async () => {
      const { profile, provisionKey } = await makeScene();
      const rest = await admin();
      const hardwareId = unique('gateway');
      const stop = new AbortController();
      const backoff = { firstMilliseconds: 100, longestMilliseconds: 500 };
      const errors: string[] = [];
      const onError = (error: unknown) => errors.push(String(error));
      const gateway = await openDevice({
        ...{ url: addressOf(protocol), restUrl: addressOf('rest'), folder: join(folder, 'gateway'), backoff, onError },
        claim: { provision_key: provisionKey, device_name: hardwareId, hardware_id: hardwareId },
        onCommand: () => ({ by: 'gateway' }),
      });
      const running = gateway.run(stop.signal);
      const childOptions = {
        ...{ folder: join(folder, 'child'), backoff, onError, updates: { factoryVersion: '1.0.0' } },
        child: { hardware_id: unique('child'), profile_id: profile.profile_id },
        onCommand: () => ({ by: 'child' }),
      };
      let child = await openChild(gateway, childOptions);
      const childId = child.identity.device_id;
      expect(childId).not.to.equal(gateway.identity.device_id);
      let childRunning = child.run(stop.signal);
      const path = `/api/v1/devices/${childId}`;
      const outcomeOf = async (deviceId: string) => {
        const body = { method: 'look', persistent: true };
        const sent = await rest.post<{ correlation_id: string }>(`/api/v1/devices/${deviceId}/rpc`, body);
        const { response } = await rest.get<{ response?: unknown }>(`/api/v1/devices/rpc/${sent.correlation_id}`, {
          wait_seconds: 45,
        });
        return response;
      };
      const storedOf = async (deviceId: string) =>
        (await rest.list<{ numeric_values: object }>(`/api/v1/telemetry/${deviceId}`, 'points')).map(
          ({ numeric_values }) => numeric_values,
        );
      try {
        child.record({ level: 1 });
        gateway.record({ level: 100 });
        await Promise.all([child.flush(), gateway.flush()]);
        expect(await storedOf(childId)).to.deep.equal([{ level: 1 }]);
        expect(await storedOf(gateway.identity.device_id)).to.deep.equal([{ level: 100 }]);
        expect(await outcomeOf(childId)).to.deep.equal({ by: 'child' });
        expect(await outcomeOf(gateway.identity.device_id)).to.deep.equal({ by: 'gateway' });
        await rest.patch(`${path}/attributes`, { shared: { interval: 5 } });
        await waitUntil(() => child.attributes['interval'] === 5, { what: 'the shared attribute of the child' });
        await child.setAttributes({ seen: true });
        const { client } = await rest.get<{ client: object }>(`${path}/attributes`);
        expect(client).to.have.nested.property('seen.value', true);

        const { package_id } = await makePackage(rest, {
          version: '1.1.0',
          compatibility: { device_type: profile.type },
        });
        await rest.call('PUT', `${path}/ota/assignment`, { body: { package_id } });
        expect(await childRunning).to.equal('restart');
        await child.close();
        startImage(join(folder, 'child', 'slots'));
        child = await openChild(gateway, childOptions);
        childRunning = child.run(stop.signal);
        const version = async () => (await rest.get<{ firmware_version: string }>(path)).firmware_version;
        await waitUntil(async () => (await version()) === '1.1.0', { what: 'the new version of the child' });

        await stack().kill('apiserver');
        child.record({ level: 2 });
        await stack().waitReady('apiserver');
        await child.flush();
        expect(await outcomeOf(childId)).to.deep.equal({ by: 'child' });
        expect((await storedOf(childId)).at(-1)).to.deep.equal({ level: 2 });
      } catch (error) {
        throw new Error(`${(error as Error).message}\n${errors.join('\n')}`, { cause: error });
      } finally {
        stop.abort();
        await Promise.all([running, childRunning]);
      }
      await gateway.disconnectChild(child);
      expect(await rest.get(path)).not.to.have.property('gateway_device_id', gateway.identity.device_id);
      await child.close();
      await gateway.close();
    });
  }

  /** Runs a device of examples/, and checks everything that its comments say. */
  async function exercise(command: readonly string[], url: string): Promise<void> {
    const { profile, provisionKey } = await makeScene();
    const rest = await admin();
    const hardwareId = unique('example');
    const program: ChildProcess = spawn(command[0]!, command.slice(1), {
      cwd: checkout,
      env: {
        ...process.env,
        ...{ KELLET_URL: url, PROVISION_KEY: provisionKey, HARDWARE_ID: hardwareId, FOLDER: join(folder, 'state') },
      },
    });
    const exited = once(program, 'exit');
    let output = '';
    for (const stream of [program.stdout!, program.stderr!])
      stream.on('data', (text: Buffer) => (output += text.toString()));
    try {
      const deviceId = await waitUntil(() => /this is (\S+)\n/.exec(output)?.[1], { what: 'the claim' });
      const path = `/api/v1/devices/${deviceId}`;
      const { correlation_id } = await rest.post<{ correlation_id: string }>(`${path}/rpc`, {
        ...{ method: 'blink', params: { times: 3 }, persistent: true },
      });
      const blinked = await rest.get(`/api/v1/devices/rpc/${correlation_id}`, { wait_seconds: 30 });
      expect(blinked).to.deep.include({ status: 'successful', response: { blinked: 3 } });
      await rest.patch(`${path}/attributes`, { shared: { interval: 2 } });
      await waitUntil(
        async () => {
          const { client } = await rest.get<{ client: { interval?: { value: number } } }>(`${path}/attributes`);
          return client.interval?.value === 2;
        },
        { what: 'the attribute of the device' },
      );
      const stored = async () => (await rest.list(`/api/v1/telemetry/${deviceId}`, 'points')).length > 0;
      await waitUntil(stored, { what: 'a point' });

      // The first image is healthy, the second is not, so that the first runs again.
      for (const [version, content, expected] of [
        ['1.1.0', 'firmware', { succeeded: 1, failed: 0 }],
        ['1.2.0', 'malware', { succeeded: 0, failed: 1 }],
      ] as const) {
        const artifact = await makeArtifact(Buffer.from(content.padEnd(150_000, version)));
        const compatibility = { device_type: profile.type };
        const { package_id } = await makePackage(rest, { version, compatibility }, artifact);
        const { rollout_id } = await rest.post<Rollout>('/api/v1/ota/rollouts', {
          ...{ package_id, target_profile_id: profile.profile_id, canary_percent: 100, name: unique('sdk') },
        });
        const counts = await waitUntil(
          async () => {
            const { counts, status } = await rest.get<Rollout>(`/api/v1/ota/rollouts/${rollout_id}`);
            // The next rollout can begin once a successful one is complete.
            return counts.failed || (counts.succeeded && status === 'completed') ? counts : undefined;
          },
          { what: `the result of ${version}`, timeoutMilliseconds: 45_000 },
        );
        expect(counts).to.deep.include(expected);
        const { devices } = await rest.get<{ devices: { error?: string; firmware_version: string }[] }>(
          `/api/v1/ota/rollouts/${rollout_id}/devices`,
        );
        expect(devices[0]!.firmware_version).to.equal('1.1.0');
        if (expected.failed) expect(devices[0]!.error).to.equal('the image is broken');
      }
      const { commands } = await rest.get<{ commands: { method: string; attempts: number }[] }>(`${path}/rpc`);
      expect(output.match(/blinking/g), JSON.stringify(commands)).to.have.length(1);
    } catch (error) {
      throw new Error(`${(error as Error).message}\n${output}`, { cause: error });
    } finally {
      program.kill('SIGTERM');
      await exited;
    }
  }

  for (const protocol of protocols) {
    it(`works in examples/device/device.ts as documented, over ${protocol}`, () =>
      exercise([process.execPath, 'examples/device/start.ts'], addressOf(protocol)));
  }

  it('works in examples/device/device.py as documented, over REST', async function () {
    if (spawnSync('python3', ['--version']).status !== 0) {
      process.stderr.write('\n    SKIPPED: examples/device/device.py, because python3 was not found\n\n');
      return this.skip();
    }
    await exercise(['python3', '-u', 'examples/device/device.py'], addressOf('rest'));
  });

  for (const protocol of protocols) {
    it(`measures with kellet-sim over ${protocol}`, async () => {
      const { profile, provisionKey } = await makeScene();
      const flags = [
        '--url',
        addressOf(protocol),
        '--devices',
        '20',
        '--rate',
        '200',
        '--batch',
        '2',
        '--json',
        '--prefix',
        `${unique('sim')}-`,
      ];
      const program = spawn(process.execPath, ['device/src/sim/cli.ts', ...flags, '--state', join(folder, 'sim')], {
        cwd: checkout,
        env: { ...process.env, KELLET_PROVISION_KEY: provisionKey },
        stdio: ['ignore', 'pipe', 'pipe'],
      });
      const exited = once(program, 'exit');
      let output = '';
      let progress = '';
      program.stdout.on('data', (text: Buffer) => (output += text.toString()));
      program.stderr.on('data', (text: Buffer) => (progress += text.toString()));
      await waitUntil(() => /[1-9]\d* points\/s/.test(progress), { what: `progress, not ${progress}` }).catch(
        (error: Error) => {
          program.kill('SIGKILL');
          throw new Error(`${error.message}: ${progress}`, { cause: error });
        },
      );
      program.kill('SIGINT');
      expect(await exited, progress).to.deep.equal([0, null]);
      const summary = JSON.parse(output) as Record<'accepted' | 'rejected' | 'failed', number> & {
        latency_ms: { p50: number; p99: number };
      };
      expect(summary.accepted).to.be.above(0);
      expect(summary).to.include({ rejected: 0, failed: 0 });
      expect(summary.latency_ms.p99).to.be.at.least(summary.latency_ms.p50);
      expect(await deviceCount(profile.profile_id)).to.equal(20);
      const query = { profile_id: profile.profile_id };
      const devices = await (await admin()).list<{ device_id: string }>('/api/v1/devices', 'devices', query);
      let stored = 0;
      for (const { device_id } of devices) {
        stored += (await (await admin()).list(`/api/v1/telemetry/${device_id}`, 'points')).length;
      }
      expect(stored).to.equal(summary.accepted);
    });
  }
});

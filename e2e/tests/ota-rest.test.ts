// OTA updates through REST, from the perspective of administrators and devices.
import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { expect } from 'chai';
import { followEvents } from '../../dev/clients/broker-events.ts';
import type { Behaviour } from '../../dev/devices/behaviour.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import type { Fleet } from '../../dev/devices/fleet.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import {
  admin,
  kubectl,
  makeArtifact,
  makeFleet,
  makePackage,
  makeProfile,
  type Profile,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

interface ErrorBody {
  code: string;
  message: string;
}

interface Chunk {
  offset?: number;
  length: number;
  data: string;
  size_bytes: number;
  complete?: boolean;
}

const getRollout = async (id: string) => (await admin()).get<Rollout>(`/api/v1/ota/rollouts/${id}`);
const waitRollout = (id: string, what: string, holds: (rollout: Rollout) => boolean) =>
  waitUntil(
    async () => {
      const rollout = await getRollout(id);
      return holds(rollout) ? rollout : undefined;
    },
    { what, timeoutMilliseconds: 40_000, intervalMilliseconds: 200 },
  );

/** A profile with a fleet and packages. */
async function makeScene(count: number, behaviourOf: (index: number) => Behaviour = () => ({ kind: 'healthy' })) {
  const profile = await makeProfile(await admin(), { ota_policy: { device_timeout_seconds: 30, max_attempts: 1 } });
  const fleet = await makeFleet(await admin(), profile.profile_id, count, (index) => ({
    behaviour: behaviourOf(index),
  }));
  const makeVersion = async (version: string) =>
    makePackage(await admin(), { version, compatibility: { device_type: profile.type } });
  return { profile, fleet, makeVersion };
}

async function startRollout(
  profile: Profile,
  packageId: string,
  fields: Record<string, unknown> = {},
): Promise<Rollout> {
  const body = {
    package_id: packageId,
    target_profile_id: profile.profile_id,
    canary_percent: 100,
    name: unique('rollout'),
    ...fields,
  };
  return (await admin()).post<Rollout>('/api/v1/ota/rollouts', body);
}

/** Runs the fleet during `work`. */
async function withFleet<T>(fleet: Fleet, work: () => Promise<T>): Promise<T> {
  fleet.start();
  try {
    return await work();
  } finally {
    await fleet.stop();
  }
}

/** Receives the update without installing anything; the test reports instead. */
async function acknowledge(device: SimulatedDevice): Promise<void> {
  const commands = await device.poll(20);
  expect(commands.map(({ method }) => method)).to.include('ota_start');
}

const report = (device: SimulatedDevice, rolloutId: string, status: 'success' | 'failure', version: string) =>
  device.rest.send<ErrorBody & { state: string }>('POST', `/api/v1/devices/${device.deviceId}/ota/report`, {
    body: { device_id: device.deviceId, rollout_id: rolloutId, status, firmware_version: version },
  });

describe('updates through REST', () => {
  describe('packages', () => {
    it('are available once the artifact is verified, and visible in kubectl', async () => {
      const name = unique('package');
      const made = await makePackage(await admin(), { name, version: '1.2.3' });
      expect(made).to.include({ status: 'available', checksum_verified: true });
      interface Found {
        items: { status?: { packageId?: string }; metadata: { labels?: Record<string, string> } }[];
      }
      // The operator writes the status shortly after the response.
      const find = async () => {
        const { items } = await (await kubectl()).json<Found>(['get', 'otapkg']);
        return items.find(({ status }) => status?.packageId === made.package_id);
      };
      const resource = await waitUntil(find, { what: 'the resource', timeoutMilliseconds: 10_000 });
      expect(resource.metadata.labels).to.include({ 'kellet.dev/created-by': 'api' });
    });

    it('leave nothing behind if the checksum, size or URL is wrong', async () => {
      const artifact = await makeArtifact();
      const right = { artifact_uri: artifact.uri, sha256: artifact.sha256, size_bytes: artifact.sizeBytes };
      const cases: [string, Record<string, unknown>, RegExp][] = [
        ['checksum', { ...right, sha256: 'ab'.repeat(32) }, /sha256|checksum/i],
        ['size', { ...right, size_bytes: artifact.sizeBytes + 1 }, /size/i],
        ['place', { ...right, artifact_uri: `${stack().info.artifacts}/nothing.bin` }, /artifact/i],
        [
          'neighbour',
          { ...right, artifact_uri: `${stack().info.rest}/healthz` },
          /artifact_uri must be an https or s3 URL/,
        ],
        ['metadata', { ...right, artifact_uri: 'https://169.254.169.254/latest/' }, /artifact_uri leads to no address/],
        ['scheme', { ...right, artifact_uri: 'file:///etc/passwd' }, /artifact_uri/],
        ['version', { ...right, version: 'one' }, /version/],
      ];
      for (const [what, fields, message] of cases) {
        const name = unique('package');
        const body = { name, type: 'fw', version: '1.0.0', ...fields };
        const response = await (await admin()).send<ErrorBody>('POST', '/api/v1/ota/packages', { body });
        expect({ what, status: response.status, code: response.body.code }).to.deep.equal({
          what,
          status: 400,
          code: 'INVALID_ARGUMENT',
        });
        expect(response.body.message, what).to.match(message);
        const packages = await (await admin()).list<{ name: string }>('/api/v1/ota/packages', 'packages');
        expect(
          packages.map((found) => found.name),
          what,
        ).not.to.include(name);
        const resources = await (await kubectl()).run(['get', 'otapkg', '-o', 'yaml']);
        expect(resources, what).not.to.contain(name);
      }
    });

    it('say which renamed package still holds the name of a new one', async () => {
      const rest = await admin();
      const file = await makeArtifact();
      const [name, other] = [unique('package'), unique('package')];
      const { package_id } = await makePackage(rest, { name, version: '1.0.0' }, file);
      await rest.patch(`/api/v1/ota/packages/${package_id}`, { name: other });
      const body = { name, type: 'fw', version: '1.0.0', artifact_uri: file.uri, sha256: file.sha256 };
      const { body: refused } = await rest.send<ErrorBody>('POST', '/api/v1/ota/packages', { body });
      expect(refused).to.include({
        code: 'ALREADY_EXISTS',
        message: `the custom resource ${name} belongs to the package named "${other}": choose another name, or delete that package`,
      });
    });

    it('are rejected without a trusted signature, which the device verifies too', async () => {
      const keys = generateKeyPairSync('ed25519');
      const pem = keys.publicKey.export({ type: 'spki', format: 'pem' }).toString();
      await (await admin()).patch('/api/v1/tenant', { trusted_signing_keys: [pem] });
      const artifact = await makeArtifact();
      const digest = createHash('sha256').update(artifact.bytes).digest();
      const signature = sign(null, digest, keys.privateKey).toString('base64');
      const { profile } = await makeScene(0);
      const compatibility = { device_type: profile.type };
      const signed = await makePackage(await admin(), { version: '2.0.0', signature, compatibility }, artifact);
      expect(signed.signature_verified).to.equal(true);

      const forged = sign(null, digest, generateKeyPairSync('ed25519').privateKey).toString('base64');
      const body = {
        name: unique('package'),
        type: 'fw',
        version: '2.0.0',
        artifact_uri: artifact.uri,
        sha256: artifact.sha256,
        size_bytes: artifact.sizeBytes,
        signature: forged,
      };
      const refused = await (await admin()).send<ErrorBody>('POST', '/api/v1/ota/packages', { body });
      expect({ status: refused.status, code: refused.body.code }).to.deep.equal({
        status: 400,
        code: 'INVALID_ARGUMENT',
      });

      const fleet = await makeFleet(await admin(), profile.profile_id, 1, () => ({ signingKey: pem }));
      const { rollout_id } = await startRollout(profile, signed.package_id);
      await withFleet(fleet, () => waitRollout(rollout_id, 'completion', ({ status }) => status === 'completed'));
      expect(fleet.devices[0]!.updates[0]!.result).to.equal('success');
    });
  });

  describe('downloads', () => {
    let device: SimulatedDevice;
    let artifact: Awaited<ReturnType<typeof makeArtifact>>;
    let packageId: string;
    let otherPackageId: string;
    const chunk = (query: Record<string, string | number>) =>
      device.rest.send<Chunk & ErrorBody>('GET', `/api/v1/devices/${device.deviceId}/ota/chunk`, { query });

    before(async () => {
      const { profile, fleet, makeVersion } = await makeScene(1);
      device = fleet.devices[0]!;
      const assigned = await makeVersion('1.0.0');
      ({ artifact, package_id: packageId } = assigned);
      otherPackageId = (await makeVersion('1.1.0')).package_id;
      expect((await device.rest.send('GET', `/api/v1/devices/${device.deviceId}/ota`)).status).to.equal(404);
      await startRollout(profile, packageId);
    });

    it('begin with the metadata of the assigned package', async () => {
      const metadata = await device.rest.get<Record<string, unknown>>(`/api/v1/devices/${device.deviceId}/ota`);
      expect(metadata).to.include({
        package_id: packageId,
        type: 'fw',
        version: '1.0.0',
        size_bytes: artifact.sizeBytes,
        checksum: artifact.sha256,
        sha256: artifact.sha256,
      });
    });

    it('are served in ranges of at most 64 KiB, in any order, marking the last one', async () => {
      const last = Math.floor(artifact.sizeBytes / 65_536) * 65_536;
      for (const [offset, length, complete] of [
        [last, undefined, true],
        [0, undefined, false],
        [100, 7, false],
        [artifact.sizeBytes - 1, 65_536, true],
      ] as const) {
        const { status, body } = await chunk({ package_id: packageId, offset, ...(length ? { length } : {}) });
        expect(status).to.equal(200);
        const expected = artifact.bytes.subarray(offset, offset + (length ?? 65_536));
        expect(Buffer.from(body.data, 'base64').equals(expected), `bytes at ${offset}`).to.equal(true);
        expect({ length: body.length, complete: body.complete ?? false }).to.deep.equal({
          length: expected.length,
          complete,
        });
      }
    });

    it('reject more than 64 KiB, an offset beyond the end, and other packages', async () => {
      expect((await chunk({ package_id: packageId, offset: 0, length: 65_537 })).status).to.equal(400);
      expect((await chunk({ package_id: packageId, offset: artifact.sizeBytes })).status).to.equal(400);
      for (const other of [otherPackageId, '00000000-0000-4000-8000-000000000000', 'nonsense']) {
        const { status, body } = await chunk({ package_id: other, offset: 0 });
        expect({ status, code: body.code }).to.deep.equal({ status: 403, code: 'PERMISSION_DENIED' });
      }
    });

    it('prefer the device’s own assignment over that of its rollout', async () => {
      const path = `/api/v1/devices/${device.deviceId}/ota/assignment`;
      await (await admin()).call('PUT', path, { body: { package_id: otherPackageId } });
      expect(await device.rest.get(`/api/v1/devices/${device.deviceId}/ota`)).to.include({ version: '1.1.0' });
      await (await admin()).delete(path);
      expect(await device.rest.get(`/api/v1/devices/${device.deviceId}/ota`)).to.include({ version: '1.0.0' });
    });
  });

  describe('rollouts', () => {
    it('schedule only the canary, can be raised, and complete when all devices have succeeded', async () => {
      const { profile, fleet, makeVersion } = await makeScene(10);
      const { package_id } = await makeVersion('1.0.0');
      const rollout = await startRollout(profile, package_id, { canary_percent: 25 });
      // Rounded up: a quarter of ten devices are three.
      expect(rollout).to.include({ status: 'active', scheduled_count: 3, canary_percent: 25 });
      await withFleet(fleet, async () => {
        await waitRollout(rollout.rollout_id, 'the canary', ({ counts }) => counts.succeeded === 3);
        expect(fleet.devices.filter(({ updates }) => updates.length > 0)).to.have.length(3);
        const lower = { body: { canary_percent: 10 } };
        const refused = await (
          await admin()
        ).send<ErrorBody>('PATCH', `/api/v1/ota/rollouts/${rollout.rollout_id}`, lower);
        expect({ status: refused.status, code: refused.body.code }).to.deep.equal({
          status: 400,
          code: 'FAILED_PRECONDITION',
        });
        await (await admin()).patch(`/api/v1/ota/rollouts/${rollout.rollout_id}`, { canary_percent: 100 });
        const done = await waitRollout(rollout.rollout_id, 'completion', ({ status }) => status === 'completed');
        expect(done.outcome).to.equal('succeeded');
      });
      for (const { deviceId } of fleet.devices) {
        expect(await (await admin()).get(`/api/v1/devices/${deviceId}`)).to.include({ firmware_version: '1.0.0' });
      }
      const again = await (
        await admin()
      ).send<ErrorBody>('POST', `/api/v1/ota/rollouts/${rollout.rollout_id}/pause`, { body: {} });
      expect(again.body.code).to.equal('FAILED_PRECONDITION');
    });

    it('pause at 11 % failures but not at 10 %, with one alert, and reach no further devices', async () => {
      const events = await followEvents(stack().info.natsUrl, `profile.ota.rollout.paused.${stack().info.tenant}.*`);
      try {
        const { profile, fleet, makeVersion } = await makeScene(20);
        const { package_id } = await makeVersion('1.0.0');
        const rollout = await startRollout(profile, package_id, { canary_percent: 50, failure_threshold_percent: 10 });
        expect(rollout.scheduled_count).to.equal(10);
        const members = await (
          await admin()
        ).list<{ device_id: string }>(`/api/v1/ota/rollouts/${rollout.rollout_id}/devices`, 'devices');
        const canary = fleet.devices.filter(({ deviceId }) => members.some(({ device_id }) => device_id === deviceId));
        expect(canary).to.have.length(10);
        for (const device of canary.slice(0, 3)) await acknowledge(device);

        expect((await report(canary[0]!, rollout.rollout_id, 'failure', '1.0.0')).body.state).to.equal('failure');
        expect(
          (await report(canary[0]!, rollout.rollout_id, 'failure', '1.0.0')).status,
          'the same report again',
        ).to.equal(200);
        expect(await getRollout(rollout.rollout_id), 'at 10 %').to.include({ status: 'active' });
        await report(canary[1]!, rollout.rollout_id, 'failure', '1.0.0');
        // In the transaction of the report.
        const paused = await getRollout(rollout.rollout_id);
        expect(paused, 'at 20 %').to.deep.include({ status: 'paused', pause_reasons: ['failure_threshold_exceeded'] });
        expect(paused.counts.failed).to.equal(2);

        await report(canary[2]!, rollout.rollout_id, 'failure', '1.0.0');
        const subject = `profile.ota.rollout.paused.${stack().info.tenant}.${rollout.rollout_id}`;
        const alerts = () => events.received.filter((event) => event.subject === subject);
        await waitUntil(() => alerts().length > 0, { what: 'the alert', timeoutMilliseconds: 5000 });
        const raised = await (
          await admin()
        ).send<ErrorBody>('PATCH', `/api/v1/ota/rollouts/${rollout.rollout_id}`, { body: { canary_percent: 100 } });
        expect(raised.body.code).to.equal('FAILED_PRECONDITION');
        for (const device of fleet.devices.filter((candidate) => !canary.includes(candidate))) {
          expect(await device.poll(0)).to.deep.equal([]);
        }
        expect(alerts()).to.have.length(1);
      } finally {
        await events.close();
      }
    });

    it('pause at eleven failures of a hundred, but not at ten', async () => {
      const { profile, fleet, makeVersion } = await makeScene(100);
      const { package_id } = await makeVersion('1.0.0');
      const { rollout_id } = await startRollout(profile, package_id, { failure_threshold_percent: 10 });
      await Promise.all(fleet.devices.slice(0, 11).map(acknowledge));
      await Promise.all(fleet.devices.slice(0, 10).map((device) => report(device, rollout_id, 'failure', '1.0.0')));
      expect(await getRollout(rollout_id), 'at 10 %').to.include({ status: 'active', failure_percent: 10 });
      await report(fleet.devices[10]!, rollout_id, 'failure', '1.0.0');
      expect(await getRollout(rollout_id), 'at 11 %').to.include({ status: 'paused', failure_percent: 11 });
    });

    it('count success with another version as a failure', async () => {
      const { profile, fleet, makeVersion } = await makeScene(1, () => ({ kind: 'wrong-version', version: '0.9.0' }));
      const { package_id } = await makeVersion('1.0.0');
      const { rollout_id } = await startRollout(profile, package_id, { failure_threshold_percent: 100 });
      await withFleet(fleet, () => waitRollout(rollout_id, 'the failure', ({ counts }) => counts.failed === 1));
      const { deviceId } = fleet.devices[0]!;
      expect(await (await admin()).get(`/api/v1/devices/${deviceId}`)).to.include({ firmware_version: '0.9.0' });
    });

    it('count a silent device as failed', async () => {
      const { profile, fleet, makeVersion } = await makeScene(2, (index) =>
        index ? { kind: 'healthy' } : { kind: 'silent' },
      );
      const { package_id } = await makeVersion('1.0.0');
      const { rollout_id } = await startRollout(profile, package_id, { device_timeout_seconds: 2, max_attempts: 1 });
      const paused = await withFleet(fleet, () =>
        waitRollout(rollout_id, 'the pause', ({ status }) => status === 'paused'),
      );
      expect(paused.counts).to.include({ timed_out: 1, succeeded: 1 });
    });

    it('roll back every device that the update reached', async () => {
      const { profile, fleet, makeVersion } = await makeScene(8, () => ({ kind: 'fails', versions: ['2.0.0'] }));
      const first = await makeVersion('1.0.0');
      const second = await makeVersion('2.0.0');
      await withFleet(fleet, async () => {
        const good = await startRollout(profile, first.package_id);
        await waitRollout(good.rollout_id, 'the first rollout', ({ status }) => status === 'completed');
        const bad = await startRollout(profile, second.package_id, {
          canary_percent: 50,
          rollback_package_id: first.package_id,
        });
        await waitRollout(bad.rollout_id, 'the pause', ({ status }) => status === 'paused');
        const turned = await (await admin()).post<Rollout>(`/api/v1/ota/rollouts/${bad.rollout_id}/rollback`);
        expect(turned.status).to.equal('rolling_back');
        const done = await waitRollout(bad.rollout_id, 'the rollback', ({ status }) => status === 'completed');
        expect(done.outcome).to.equal('rolled_back');
      });
      expect(fleet.devices.map(({ firmwareVersion }) => firmwareVersion)).to.deep.equal(Array(8).fill('1.0.0'));
      expect(
        fleet.devices.filter(({ updates }) => updates.some(({ version }) => version === '2.0.0')).length,
      ).to.be.at.most(4);
    });

    it('roll back a device that finishes the update after the rollback has begun', async () => {
      const { profile, fleet, makeVersion } = await makeScene(1);
      const device = fleet.devices[0]!;
      const [first, second] = [await makeVersion('1.0.0'), await makeVersion('2.0.0')];
      const good = await startRollout(profile, first.package_id);
      await withFleet(fleet, () => waitRollout(good.rollout_id, 'v1', ({ status }) => status === 'completed'));
      const bad = await startRollout(profile, second.package_id, { rollback_package_id: first.package_id });
      await acknowledge(device);
      await (await admin()).post(`/api/v1/ota/rollouts/${bad.rollout_id}/rollback`);
      expect((await report(device, bad.rollout_id, 'success', '2.0.0')).status, 'the late report').to.equal(200);
      expect(await (await admin()).get(`/api/v1/devices/${device.deviceId}`)).to.include({ firmware_version: '2.0.0' });
      await withFleet(fleet, () => waitRollout(bad.rollout_id, 'the rollback', ({ status }) => status === 'completed'));
      expect(device.firmwareVersion).to.equal('1.0.0');
      const devices = `/api/v1/ota/rollouts/${bad.rollout_id}/devices`;
      const [member] = await (await admin()).list<{ state: string }>(devices, 'devices');
      expect(member!.state).to.equal('rolled_back');
    });

    it('pause and resume on command, idempotently', async () => {
      const { profile, fleet, makeVersion } = await makeScene(2);
      const { package_id } = await makeVersion('1.0.0');
      const { rollout_id } = await startRollout(profile, package_id, { canary_percent: 50 });
      const verb = async (name: string, body = {}) =>
        (await admin()).send<Rollout & ErrorBody>('POST', `/api/v1/ota/rollouts/${rollout_id}/${name}`, { body });
      for (let time = 0; time < 2; time++) {
        expect((await verb('pause')).body).to.deep.include({ status: 'paused', pause_reasons: ['operator_pause'] });
      }
      for (const device of fleet.devices) expect(await device.poll(0)).to.deep.equal([]);
      expect((await verb('resume', { canary_percent: 100 })).body).to.include({ status: 'active' });
      expect((await verb('resume')).status).to.equal(200);
      await withFleet(fleet, () => waitRollout(rollout_id, 'completion', ({ status }) => status === 'completed'));
      expect((await verb('rollback')).body.code).to.equal('FAILED_PRECONDITION');
    });

    it('are validated, and limited to one at a time per profile', async () => {
      const { profile, makeVersion } = await makeScene(1);
      const { package_id } = await makeVersion('1.0.0');
      await startRollout(profile, package_id);
      const next = await makeVersion('2.0.0');
      const post = async (fields: Record<string, unknown>) => {
        const body = {
          package_id: next.package_id,
          target_profile_id: profile.profile_id,
          canary_percent: 10,
          ...fields,
        };
        const response = await (await admin()).send<ErrorBody>('POST', '/api/v1/ota/rollouts', { body });
        return `${response.status} ${response.body.code}`;
      };
      expect(await post({})).to.equal('409 ALREADY_EXISTS');
      expect(await post({ canary_percent: 0 })).to.equal('400 INVALID_ARGUMENT');
      expect(await post({ canary_percent: 101 })).to.equal('400 INVALID_ARGUMENT');
      expect(await post({ failure_threshold_percent: 101 })).to.equal('400 INVALID_ARGUMENT');
      const inUse = await (await admin()).send<ErrorBody>('DELETE', `/api/v1/ota/packages/${package_id}`);
      expect(inUse.body.code).to.equal('FAILED_PRECONDITION');
    });
  });
});

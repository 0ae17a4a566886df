// A rollout follows its fleet: immediately, without an operator, and in any process that changes a device.
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeArtifact, makeFleet, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

describe('a rollout follows its fleet', function () {
  this.timeout(120_000);
  let rest: Rest;
  before(async () => (rest = await admin()));

  /** Starts a rollout to all devices of a new profile with this many devices. */
  const start = async (count: number, failureThresholdPercent: number) => {
    const profile = await makeProfile(rest);
    const { devices } = await makeFleet(rest, profile.profile_id, count);
    const artifact = await makeArtifact(1000);
    const { package_id } = await makePackage(rest, { version: '2.0.0' }, artifact);
    const own = await makePackage(rest, { version: '1.5.0' });
    const { rollout_id } = await rest.post<Rollout>('/api/v1/ota/rollouts', {
      package_id,
      target_profile_id: profile.profile_id,
      canary_percent: 100,
      failure_threshold_percent: failureThresholdPercent,
      name: unique('rollout'),
    });
    const show = () => rest.get<Rollout>(`/api/v1/ota/rollouts/${rollout_id}`);
    const fail = (device: SimulatedDevice) =>
      device.rest.post(`/api/v1/devices/${device.deviceId}/ota/report`, {
        rollout_id,
        firmware_version: '1.0.0',
        status: 'failure',
      });
    return { profile, devices, packageId: package_id, ownPackageId: own.package_id, rolloutId: rollout_id, show, fail };
  };
  const remove = (as: Rest, device: SimulatedDevice) => as.send('DELETE', `/api/v1/devices/${device.deviceId}`);

  it('schedules a device that claims while it runs, within two seconds', async () => {
    const { profile, show } = await start(2, 100);
    await makeFleet(rest, profile.profile_id, 1);
    const { counts } = await waitUntil(
      async () => {
        const rollout = await show();
        return rollout.counts.scheduled === 3 && rollout;
      },
      { what: 'the third device scheduled', timeoutMilliseconds: 2000 },
    );
    expect(counts).to.include({ eligible: 3, scheduled: 3 });
  });

  it('denies its package to a device with its own assignment', async () => {
    const { devices, packageId, ownPackageId, show } = await start(2, 100);
    const [device] = devices as [SimulatedDevice];
    const base = `/api/v1/devices/${device.deviceId}/ota`;
    const chunk = async (id: string) =>
      (await device.rest.send('GET', `${base}/chunk?package_id=${id}&offset=0&length=10`)).status;
    expect(await chunk(packageId)).to.equal(200);
    await rest.call('PUT', `${base}/assignment`, { body: { package_id: ownPackageId } });
    expect(await chunk(packageId)).to.equal(403);
    expect(await chunk(ownPackageId)).to.equal(200);
    expect(await device.rest.get(base)).to.include({ package_id: ownPackageId });
    expect((await show()).counts).to.include({ eligible: 1, scheduled: 1 });
    await rest.delete(`${base}/assignment`);
    await waitUntil(async () => (await show()).counts.scheduled === 2, {
      what: 'the device scheduled again',
      timeoutMilliseconds: 3000,
    });
  });

  it('pauses in the deletion that crosses the threshold, without an operator, in any process', async () => {
    const registry = await stack().startTarget('target-registry', 'device-registry');
    const gateway = await stack().startTarget('target-registry-gateway', 'gateway', {
      KELLET_SERVICE_ADDRESSES: `device-registry=${registry.control},*=${stack().control}`,
      // The gateway target has no signing key.
      KELLET_JWT_PRIVATE_KEY_FILE: '',
    });
    const apart = await Rest.login(gateway.rest, stack().info);
    const rollouts = [await start(5, 20), await start(5, 20)] as const;
    await stack().stopProcess('operator');
    try {
      for (const [as, { devices, show, fail }] of [
        [rest, rollouts[0]],
        [apart, rollouts[1]],
      ] as const) {
        await fail(devices[0]!);
        expect(await show()).to.include({ status: 'active' });
        expect((await remove(as, devices[1]!)).status).to.equal(200);
        const paused = await show();
        expect(paused).to.include({ status: 'paused', failure_percent: 25 });
        expect(paused.pause_reasons).to.deep.equal(['failure_threshold_exceeded']);
      }
    } finally {
      await stack().startProcess('operator');
      for (const name of ['target-registry-gateway', 'target-registry'] as const) await stack().stopProcess(name);
    }
  });
});

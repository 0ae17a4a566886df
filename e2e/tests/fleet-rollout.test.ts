// A whole fleet goes through an update and a rollback, with devices that never report, fail, lie about their version, join
// late and lose their connection: everything ends exactly as the rules say, device by device.
//
//   KELLET_TEST_FLEET_DEVICES   how many devices (100); `make fleet` runs it with 5,000
import { expect } from 'chai';
import { PatientRest, type Rest } from '../../dev/clients/rest.ts';
import type { Behaviour } from '../../dev/devices/behaviour.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { Fleet } from '../../dev/devices/fleet.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import {
  admin as signedInAdmin,
  kubectl,
  makeArtifact,
  makePackage,
  makeProfile,
  makeTemplate,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

/** The API as the administrator of the tenant. */
const admin = async (): Promise<Rest> => {
  const { base, token } = await signedInAdmin();
  return new PatientRest(base, token);
};

const size = Number(process.env['KELLET_TEST_FLEET_DEVICES'] ?? '100');
/** Long enough for the simulated devices, which share one process; whoever is later is corrected by its report. */
const timeoutSeconds = Math.max(5, Math.ceil(size / 60));
/** Each of three stages ends only when its silent devices have timed out twice. */
const silenceMilliseconds = 3 * 2 * timeoutSeconds * 1000;
/** Every device tries again within some 4 ms times the size of the fleet. */
const backoff = { firstMilliseconds: 500, longestMilliseconds: Math.max(2000, 4 * size) };
const longest = { timeoutMilliseconds: 60_000 + size * 100 + silenceMilliseconds, intervalMilliseconds: 500 };

/** The number from 0 to 99 that decides what a device is like: each occurs equally often. */
const shareOf = (index: number): number => (index * 37) % 100;
const isLate = (index: number): boolean => shareOf(index) >= 90;

/** 3 % are silent, 2 % fail the update, 1 % lie; 60 % fail the next one. */
function behaviourOf(index: number): Behaviour {
  const share = shareOf(index);
  if (share < 3) return { kind: 'silent' };
  if (share < 5) return { kind: 'fails', versions: ['2.0.0'] };
  if (share < 6) return { kind: 'wrong-version', version: '0.9.0' };
  return share < 66 ? { kind: 'fails', versions: ['3.0.0'] } : { kind: 'healthy' };
}

/** How a rollout of 2.0.0 ends for a device. */
function expectedState({ behaviour }: SimulatedDevice): string {
  if (behaviour.kind === 'silent') return 'timed_out';
  const fails = behaviour.kind === 'fails' && behaviour.versions.includes('2.0.0');
  return fails || behaviour.kind === 'wrong-version' ? 'failure' : 'successful';
}

const wasReached = (device: SimulatedDevice): boolean => device.updates.some(({ version }) => version === '3.0.0');

describe(`a fleet of ${size} devices`, function () {
  this.timeout(10 * longest.timeoutMilliseconds);
  let early: Fleet;
  let late: Fleet;
  const all = () => [...early.devices, ...late.devices];
  let profileId: string;
  let provisionKey: string;
  const packages = new Map<string, string>();

  before(async () => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    profileId = profile.profile_id;
    ({ provision_key: provisionKey } = await makeTemplate(rest, profileId));
    const prefix = unique('hw');
    const bytes = 150_000;
    const optionsOf = (index: number) => ({
      ...{ base: stack().info.rest, name: `${prefix}-${index}`, hardwareId: `${prefix}-${index}` },
      behaviour: behaviourOf(index),
      backoff,
      // Every third device loses its connection twice.
      cutAfterBytes: index % 3 === 0 ? [(index * 7919) % bytes, (index * 104_729) % bytes] : [],
    });
    const indices = Array.from({ length: size }, (_, index) => index);
    early = new Fleet(indices.filter((index) => !isLate(index)).map(optionsOf));
    late = new Fleet(indices.filter(isLate).map(optionsOf));
    const compatibility = { device_type: profile.type };
    for (const version of ['2.0.0', '3.0.0']) {
      const { package_id } = await makePackage(rest, { version, compatibility }, await makeArtifact(bytes));
      packages.set(version, package_id);
    }
    await early.claim(provisionKey);
  });
  after(() => Promise.all([early.stop(), late.stop()]));

  const start = async (version: string, policy: object) =>
    (await admin()).post<Rollout>('/api/v1/ota/rollouts', {
      ...{ package_id: packages.get(version), target_profile_id: profileId, name: unique('fleet') },
      ...policy,
    });
  const show = async (id: string) => (await admin()).get<Rollout>(`/api/v1/ota/rollouts/${id}`);
  const devicesOf = async (id: string) => {
    const found = await (
      await admin()
    ).list<{ device_id: string; state: string }>(`/api/v1/ota/rollouts/${id}/devices`, 'devices', { page_size: 1000 });
    return new Map(found.map((device) => [device.device_id, device.state]));
  };
  const tally = (states: Iterable<string>) => {
    const counts = new Map<string, number>();
    for (const state of states) counts.set(state, (counts.get(state) ?? 0) + 1);
    return Object.fromEntries([...counts].sort());
  };
  /** Compares the numbers of a rollout in REST, in its devices and in Kubernetes. */
  const expectAgreement = async (id: string) => {
    const { counts, name } = await show(id);
    const states = await devicesOf(id);
    const number = (state: string) => tally(states.values())[state] ?? 0;
    expect(states.size).to.equal(counts.scheduled);
    expect(number('timed_out')).to.equal(counts.timed_out ?? 0);
    expect(number('successful')).to.equal(counts.succeeded ?? 0);
    expect(number('failure')).to.equal(counts.failed ?? 0);
    const wanted = [counts.scheduled, counts.succeeded, counts.failed, counts.timed_out].map((count) => count ?? 0);
    const path = ['scheduled', 'succeeded', 'failed', 'timedOut'].map((each) => `{.status.counts.${each}}`).join(' ');
    await waitUntil(
      async () => {
        const status = await (await kubectl()).run(['get', 'otaro', name, '-o', `jsonpath=${path}`]);
        return status.split(' ').map(Number).join() === wanted.join();
      },
      { what: 'the status of the resource' },
    );
  };

  it('is updated but for those that fail, lie or stay silent, also by those that join late', async () => {
    const policy = { failure_threshold_percent: 100, steps: [{ percent: 50 }, { percent: 100 }] };
    const { rollout_id: id, scheduled_count } = await start('2.0.0', {
      ...policy,
      ...{ canary_percent: 10, device_timeout_seconds: timeoutSeconds, max_attempts: 2 },
    });
    expect(scheduled_count).to.equal(Math.ceil(early.devices.length / 10));
    early.start();
    // The latecomers join while the first ones update.
    await waitUntil(async () => ((await show(id)).counts.succeeded ?? 0) > 0, { what: 'the first result', ...longest });
    await late.claim(provisionKey);
    late.start();
    const expected = new Map(all().map((device) => [device.deviceId, expectedState(device)]));
    const wanted = tally(expected.values());
    await waitUntil(
      async () => {
        const { counts, message } = await show(id);
        const is = [counts.eligible, counts.succeeded, counts.failed, counts.timed_out].map((count) => count ?? 0);
        const ends = [size, wanted['successful'], wanted['failure'], wanted['timed_out']].map((count) => count ?? 0);
        if (is.join() !== ends.join()) throw new Error(`${is.join()} instead of ${ends.join()}: ${message}`);
        return true;
      },
      { what: 'the results of all devices', ...longest },
    );
    expect([...(await devicesOf(id))].sort()).to.deep.equal([...expected].sort());
    await expectAgreement(id);
    const open = (wanted['failure'] ?? 0) + (wanted['timed_out'] ?? 0);
    expect(await show(id)).to.include({
      status: 'active',
      message: `${open} devices failed: retry or skip them to complete`,
    });
    for (const device of all()) {
      const runs = { silent: '', 'wrong-version': '0.9.0' }[device.behaviour.kind as string] ?? '2.0.0';
      expect(device.firmwareVersion).to.equal(runs);
    }
    // What they report is what the registry knows.
    const known = await (
      await admin()
    ).list<{ device_id: string; firmware_version?: string }>('/api/v1/devices', 'devices', {
      ...{ profile_id: profileId, page_size: 1000 },
    });
    const versions = new Map(known.map((device) => [device.device_id, device.firmware_version ?? '']));
    for (const { deviceId, firmwareVersion } of all()) expect(versions.get(deviceId)).to.equal(firmwareVersion);
    const failed = [...expected].flatMap(([deviceId, state]) => (state === 'successful' ? [] : [deviceId]));
    for (let first = 0; first < failed.length; first += 100) {
      await (await admin()).post(`/api/v1/ota/rollouts/${id}/skip`, { device_ids: failed.slice(first, first + 100) });
    }
    await waitUntil(async () => (await show(id)).status === 'completed', { what: 'the end', ...longest });
    expect(await show(id)).to.include({ outcome: 'succeeded' });
  });

  it('is protected from a bad update by its canary, which then goes back', async () => {
    const { rollout_id: id, scheduled_count } = await start('3.0.0', {
      ...{ rollback_package_id: packages.get('2.0.0'), canary_percent: 20, failure_threshold_percent: 10 },
      ...{ min_failures: 2, device_timeout_seconds: timeoutSeconds, max_attempts: 1, steps: [{ percent: 100 }] },
    });
    const canary = Math.ceil(size / 5);
    expect(scheduled_count).to.equal(canary);
    await waitUntil(async () => (await show(id)).status === 'paused', { what: 'the pause', ...longest });
    const paused = await show(id);
    expect(paused.pause_reasons).to.deep.equal(['failure_threshold_exceeded']);
    expect(((paused.counts.failed ?? 0) + (paused.counts.timed_out ?? 0)) * 10).to.be.above(canary);
    await (await admin()).post(`/api/v1/ota/rollouts/${id}/rollback`);
    await waitUntil(async () => (await show(id)).status === 'completed', { what: 'the rollback', ...longest });
    expect(await show(id)).to.include({ outcome: 'rolled_back' });

    const members = await devicesOf(id);
    expect(members.size, 'never more than the canary').to.equal(canary);
    const outsiders = all().filter(({ deviceId }) => !members.has(deviceId));
    expect(outsiders.filter(wasReached).map(({ deviceId }) => deviceId)).to.deep.equal([]);
    const expectedAfter = (device: SimulatedDevice): string => {
      if (!wasReached(device)) return 'skipped';
      const state = expectedState(device);
      return state === 'successful' ? 'rolled_back' : state;
    };
    const inside = all().filter(({ deviceId }) => members.has(deviceId));
    // A device that reports after its time has run out still goes back.
    await waitUntil(
      async () => {
        const states = await devicesOf(id);
        const wrong = inside.filter((device) => states.get(device.deviceId) !== expectedAfter(device));
        if (wrong.length === 0) return true;
        throw new Error(
          wrong.map((one) => `${one.deviceId} ${states.get(one.deviceId)}, not ${expectedAfter(one)}`).join(),
        );
      },
      { what: 'the state of every device', ...longest },
    );
    const good = inside.filter((device) => expectedState(device) === 'successful');
    expect(new Set(good.map(({ firmwareVersion }) => firmwareVersion))).to.deep.equal(new Set(['2.0.0']));
  });
});

// Commands over a lossy connection: delivered at least once, executed once.
import type { Command } from '@kellet/device';
import { expect } from 'chai';
import pg from 'pg';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeFleet, makePackage, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

interface CommandRecord extends Command {
  status: string;
  attempts: number;
  response?: object;
}

describe('commands over a lossy connection', () => {
  let database: pg.Client;
  before(async () => {
    database = new pg.Client({ connectionString: stack().info.databaseUrl });
    await database.connect();
  });
  after(() => database.end());

  /** Makes the next redelivery of a device's commands due immediately. */
  const makeDue = (device: SimulatedDevice) =>
    database.query(`UPDATE device_commands SET not_before = now() WHERE device_id = $1 AND status = 'sent'`, [
      device.deviceId,
    ]);

  async function makeDevice() {
    const profile = await makeProfile(await admin());
    const fleet = await makeFleet(await admin(), profile.profile_id, 1);
    return { profile, fleet, device: fleet.devices[0]! };
  }

  it('are carried out once, and duplicates get the first response', async () => {
    const { device } = await makeDevice();
    const rest = await admin();
    const { correlation_id: id } = await rest.post<CommandRecord>(`/api/v1/devices/${device.deviceId}/rpc`, {
      method: 'blink',
      persistent: true,
    });
    const { signal } = new AbortController();
    // The first delivery is lost with the device's power, the second arrives twice.
    await device.poll(0);
    await makeDue(device);
    const [command] = await device.poll(0);
    await device.obey(command!, signal);
    await device.obey(command!, signal);
    expect(device.executed.map((each) => each.correlation_id)).to.deep.equal([id]);
    expect(await rest.get<CommandRecord>(`/api/v1/devices/rpc/${id}`)).to.deep.include({
      ...{ status: 'successful', attempts: 2, response: { method: 'blink' } },
    });
    await makeDue(device);
    expect(await device.poll(0)).to.have.length(0);
  });

  it('update a device once, and count once in its rollout', async () => {
    const { profile, fleet, device } = await makeDevice();
    const rest = await admin();
    const { package_id: packageId } = await makePackage(rest, {
      version: '1.1.0',
      compatibility: { device_type: profile.type },
    });
    const { rollout_id: rolloutId } = await rest.post<Rollout>('/api/v1/ota/rollouts', {
      ...{ package_id: packageId, target_profile_id: profile.profile_id, canary_percent: 100, name: unique('rollout') },
    });
    const [lost] = await device.poll(10);
    expect(lost!.method).to.equal('ota_start');
    await makeDue(device);
    fleet.start();
    try {
      const done = await waitUntil(
        async () => {
          const rollout = await rest.get<Rollout>(`/api/v1/ota/rollouts/${rolloutId}`);
          return rollout.status === 'completed' ? rollout : undefined;
        },
        { what: 'the rollout completes', timeoutMilliseconds: 40_000, intervalMilliseconds: 200 },
      );
      expect(done.counts).to.include({ scheduled: 1, sent: 1, succeeded: 1 });
    } finally {
      await fleet.stop();
    }
    expect(device.commands.map((each) => each.correlation_id)).to.deep.equal([
      lost!.correlation_id,
      lost!.correlation_id,
    ]);
    expect(device.updates).to.have.length(1);
    expect(await rest.get<CommandRecord>(`/api/v1/devices/rpc/${lost!.correlation_id}`)).to.include({
      ...{ status: 'successful', attempts: 2 },
    });
  });
});

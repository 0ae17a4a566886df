import { expect } from 'chai';
import { newId } from '../../../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../../../platform/testing/test-database.ts';
import { deleteOldRolloutDevices } from '../stores/rollout-device-store.ts';

describe('the sweep of completed rollouts', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const addRollout = async (phase: string, days: number): Promise<string> => {
    const rolloutId = newId();
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO ota_rollouts (tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, spec, phase, succeeded,
           updated_at)
         VALUES ('acme', $1::uuid, $1::uuid::text, 'acme', '', gen_random_uuid(), gen_random_uuid(), '{}', $2, 5, now() - $3 * interval '1 day')`,
        [rolloutId, phase, days],
      );
      await tx.query(
        `INSERT INTO ota_rollout_devices (tenant_id, rollout_id, device_id, state, stage_percent)
         SELECT 'acme', $1, gen_random_uuid(), 'successful', 100 FROM generate_series(1, 5)`,
        [rolloutId],
      );
    });
    return rolloutId;
  };
  const devicesOf = (rolloutId: string): Promise<number> =>
    test.database.system(async (tx) => {
      const { rows } = await tx.query<{ devices: number }>(
        'SELECT count(*)::int4 AS devices FROM ota_rollout_devices WHERE rollout_id = $1',
        [rolloutId],
      );
      return rows[0]!.devices;
    });

  it('deletes the devices of those that completed long ago, a few at a time, and keeps the rollouts', async () => {
    const [oldest, old, young, paused] = [
      await addRollout('completed', 40),
      await addRollout('completed', 35),
      await addRollout('completed', 20),
      await addRollout('paused', 40),
    ];
    const sweep = () => test.database.system((tx) => deleteOldRolloutDevices(tx, 30, 4));
    expect(await sweep()).to.equal(4);
    expect(await devicesOf(oldest)).to.equal(1);
    expect(await sweep()).to.equal(1);
    expect(await devicesOf(oldest)).to.equal(0);
    expect(await devicesOf(old)).to.equal(5);
    while ((await sweep()) !== undefined);
    expect(await devicesOf(old)).to.equal(0);
    expect(await devicesOf(young)).to.equal(5);
    expect(await devicesOf(paused)).to.equal(5);
    const { rows } = await test.database.system((tx) =>
      tx.query('SELECT FROM ota_rollouts WHERE succeeded = 5 AND tenant_id = $1', ['acme']),
    );
    expect(rows).to.have.length(4);
  });

  it('keeps the devices that may still report', async () => {
    const rolloutId = await addRollout('completed', 40);
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO ota_rollout_devices (tenant_id, rollout_id, device_id, state, stage_percent, rolling_back)
         SELECT 'acme', $1, gen_random_uuid(), 'sent', 100, true FROM generate_series(1, 2)`,
        [rolloutId],
      );
      // The other one has another package by now.
      await tx.query(
        `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id, rollout_id)
         SELECT tenant_id, device_id, 'fw', gen_random_uuid(), rollout_id FROM ota_rollout_devices
         WHERE rollout_id = $1 AND rolling_back LIMIT 1`,
        [rolloutId],
      );
    });
    while ((await test.database.system((tx) => deleteOldRolloutDevices(tx, 30, 4))) !== undefined);
    expect(await devicesOf(rolloutId)).to.equal(1);
  });
});

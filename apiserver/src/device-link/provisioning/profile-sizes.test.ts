import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import type { Change } from '../../control/changes.ts';
import {
  changeDevice,
  countDevicesOfProfile,
  createDevice,
  markDeleted,
} from '../../device-registry/devices/devices.ts';
import { controlChannel } from '../../platform/database/channels.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { announceResizedProfiles } from './profile-sizes.ts';
import { applyProfile, provisioningDispatcher } from './testing/test-fixtures.ts';

describe('the number of devices of a profile', () => {
  let test: TestDatabase;
  let profiles: string[];
  let announced: Change[];

  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    const dispatcher = provisioningDispatcher(test.database);
    profiles = [];
    for (const name of ['pumps', 'valves', 'meters']) {
      profiles.push((await applyProfile(dispatcher, { tenantId: 'acme', name })).id);
    }
    announced = [];
    let listening = false;
    test.database.listen(
      [controlChannel],
      (_channel, payload) => announced.push(JSON.parse(payload) as Change),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
  });
  after(() => test.drop());

  const add = async (profileId: string): Promise<string> => {
    const deviceId = newId();
    const device = { tenantId: 'acme', deviceId, name: 'd', hardwareId: deviceId, profileId, groupIds: [] };
    await test.database.tenant('acme', (tx) => createDevice(tx, { ...device, credentialType: 'api_key' }));
    return deviceId;
  };
  const move = (deviceId: string, profileId: string | null) =>
    retryConflicts(() =>
      test.database.tenant('acme', (tx) => changeDevice(tx, 'acme', deviceId, new Map([['profile_id', profileId]]))),
    );
  const remove = (deviceId: string) => test.database.tenant('acme', (tx) => markDeleted(tx, 'acme', [deviceId], []));
  const counts = (tenantId = 'acme') =>
    test.database.read(tenantId, (tx) => Promise.all(profiles.map((id) => countDevicesOfProfile(tx, tenantId, id))));

  it('follows creation, moves, deletion, and what is rolled back', async () => {
    const [one, two, free] = [await add(profiles[0]!), await add(profiles[0]!), await add('')];
    expect(await counts()).to.deep.equal([2, 0, 0]);
    expect(await counts('other')).to.deep.equal([0, 0, 0]);
    await move(one, profiles[1]!);
    await move(free, profiles[2]!);
    await test.database.tenant('acme', (tx) => changeDevice(tx, 'acme', two, new Map([['name', 'renamed']])));
    expect(await counts()).to.deep.equal([1, 1, 1]);
    await remove(two);
    await move(free, null);
    const undone = test.database.tenant('acme', async (tx) => {
      await changeDevice(tx, 'acme', one, new Map([['profile_id', profiles[2]!]]));
      throw new Error('undone');
    });
    await undone.catch(() => undefined);
    expect(await counts()).to.deep.equal([0, 1, 0]);
    await remove(one);
    await remove(free);
    expect(await counts()).to.deep.equal([0, 0, 0]);
  });

  it('is exact after concurrent changes', async () => {
    await Promise.all(
      Array.from({ length: 60 }, async (_, n) => {
        const deviceId = await add(profiles[n % 3]!);
        for (let step = 1; step <= 3; step += 1) await move(deviceId, profiles[(n + step * (n % 2 ? 1 : 2)) % 3]!);
        if (n % 5 === 0) await remove(deviceId);
      }),
    );
    const { rows } = await test.database.system((tx) =>
      tx.query<{ profile_id: string; n: number }>(
        `SELECT profile_id, count(*)::int4 AS n FROM devices
         WHERE tenant_id = 'acme' AND deleted_at IS NULL AND profile_id IS NOT NULL GROUP BY profile_id`,
      ),
    );
    const real = new Map(rows.map((row) => [row.profile_id, row.n]));
    expect(await counts()).to.deep.equal(profiles.map((id) => real.get(id) ?? 0));
    expect((await counts()).reduce((sum, n) => sum + n, 0)).to.equal(48);
  });

  it('is announced once for all changes of a profile, and not when nothing has changed', async () => {
    while ((await announceResizedProfiles(test.database)) > 0);
    // Notifications arrive in order: after this one, none of those above is still under way.
    const last = newId();
    await test.database.system((tx) => tx.query('SELECT pg_notify($1, $2)', [controlChannel, `{"name":"${last}"}`]));
    await eventually(() => announced.at(-1)?.name === last);
    const before = announced.length;
    expect(await announceResizedProfiles(test.database)).to.equal(0);
    const [one] = await Promise.all(Array.from({ length: 5 }, () => add(profiles[1]!)));
    await announceResizedProfiles(test.database);
    await eventually(() => announced.length > before);
    const { kind, tenantId, namespace, name } = announced.at(-1)!;
    expect({ kind, tenantId, namespace, name }).to.deep.equal({
      ...{ kind: 'DeviceProfile', tenantId: 'acme', namespace: 'kellet-acme', name: 'valves' },
    });
    expect(announced).to.have.length(before + 1);
    await remove(one!);
    await announceResizedProfiles(test.database);
    await eventually(() => announced.length === before + 2);
  });

  it('is announced for all tenants, however many profiles of one change all the time', async () => {
    while ((await announceResizedProfiles(test.database)) > 0);
    await test.database.system((tx) =>
      tx.query(`INSERT INTO profile_devices (tenant_id, profile_id, part)
        SELECT 'acme', gen_random_uuid(), 0 FROM generate_series(1, 1000) UNION ALL SELECT 'other', gen_random_uuid(), 0`),
    );
    await announceResizedProfiles(test.database);
    const { rows } = await test.database.system((tx) =>
      tx.query(`SELECT changed FROM profile_devices WHERE tenant_id = 'other'`),
    );
    expect(rows).to.deep.equal([{ changed: false }]);
  });
});

import { expect } from 'chai';
import { credentialHash } from '../../auth/credentials/api-key-format.ts';
import { mintDeviceKey, revokeDeviceKeys } from '../../auth/device-credentials/device-keys.ts';
import { deviceCredentials, insertTenant } from '../../auth/testing/test-fixtures.ts';
import { revocationChannel } from '../../platform/database/channels.ts';
import { KelletError } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createDevice, findByHardwareId, type NewDevice, setVersions } from './devices.ts';
import { unknownGroups } from './group-members.ts';

describe('devices in the database', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    await insertTenant(test.database, 'small', { quotas: { devices: 3 } });
  });
  after(() => test.drop());

  const device = (overrides: Partial<NewDevice> = {}): NewDevice => ({
    tenantId: 'acme',
    deviceId: newId(),
    name: 'pump',
    hardwareId: newId(),
    profileId: '',
    groupIds: [],
    credentialType: 'api_key',
    ...overrides,
  });
  const make = (overrides: Partial<NewDevice> = {}) => {
    const wanted = device(overrides);
    return test.database.tenant(wanted.tenantId, (tx) => createDevice(tx, wanted));
  };
  const codeOf = (error: unknown) => (error instanceof KelletError ? error.code : String(error));

  it('gives a hardware id to exactly one of many transactions, and the others see that device', async () => {
    const results = await Promise.all(
      Array.from({ length: 12 }, () => {
        const wanted = device({ hardwareId: 'contested' });
        return test.database.tenant('acme', async (tx) => {
          try {
            return { made: (await createDevice(tx, wanted)).device_id };
          } catch (error) {
            return { refused: codeOf(error), found: (await findByHardwareId(tx, 'acme', 'contested'))?.device_id };
          }
        });
      }),
    );
    const made = results.flatMap((result) => ('made' in result ? [result.made] : []));
    expect(made).to.have.length(1);
    for (const result of results) {
      if ('refused' in result) expect(result).to.deep.equal({ refused: 'ALREADY_EXISTS', found: made[0] });
    }
    await make({ tenantId: 'other', hardwareId: 'contested' });
  });

  it('reuses the hardware id of a deleted device', async () => {
    const first = await make({ hardwareId: 'again' });
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [first.device_id]),
    );
    expect((await make({ hardwareId: 'again' })).device_id).not.to.equal(first.device_id);
  });

  it('never exceeds the quota of devices, also with concurrent creations', async () => {
    const results = await Promise.allSettled(Array.from({ length: 8 }, () => make({ tenantId: 'small' })));
    expect(results.filter((result) => result.status === 'fulfilled')).to.have.length(3);
    for (const result of results) {
      if (result.status === 'rejected') expect(codeOf(result.reason)).to.equal('RESOURCE_EXHAUSTED');
    }
  });

  it('shows a tenant nothing of another, whatever the query', async () => {
    const theirs = await make({ tenantId: 'other' });
    await test.database.tenant('other', (tx) => mintDeviceKey(tx, 'other', theirs.device_id));
    await test.database.tenant('acme', async (tx) => {
      for (const table of ['devices', 'device_groups', 'device_group_members', 'api_keys', 'users', 'sessions']) {
        const { rows } = await tx.query(`SELECT 1 FROM ${table} WHERE tenant_id IS DISTINCT FROM 'acme'`);
        expect(rows, table).to.deep.equal([]);
      }
      const changed = await tx.query(`UPDATE devices SET name = 'stolen' WHERE device_id = $1`, [theirs.device_id]);
      expect(changed.rowCount).to.equal(0);
    });
    const refused = await make({ tenantId: 'acme' }).then(() =>
      test.database
        .tenant('acme', (tx) => createDevice(tx, device({ tenantId: 'other' })))
        .then(() => '')
        .catch(String),
    );
    expect(refused).to.contain('row-level security');
    const tokens = await test.database
      .tenant('acme', (tx) => tx.query('SELECT 1 FROM refresh_tokens'))
      .then(() => '')
      .catch(String);
    expect(tokens).to.contain('permission denied');
  });

  it('keeps versions of firmware and software separately', async () => {
    const made = await make();
    const found = await test.database.tenant('acme', async (tx) => {
      await setVersions(tx, 'acme', 'fw', new Map([[made.device_id, '1.2.0']]));
      await setVersions(tx, 'acme', 'sw', new Map([[made.device_id, '7.0.1']]));
      // The same again changes nothing, and neither does a device of another tenant.
      expect(await setVersions(tx, 'acme', 'fw', new Map([[made.device_id, '1.2.0']]))).to.deep.equal([]);
      expect(await setVersions(tx, 'other', 'fw', new Map([[made.device_id, '3.0.0']]))).to.deep.equal([]);
      return findByHardwareId(tx, 'acme', made.hardware_id);
    });
    expect(found).to.include({ firmware_version: '1.2.0', software_version: '7.0.1' });
  });

  it('returns the groups that do not exist in the tenant', async () => {
    const [mine, theirs, absent] = [newId(), newId(), newId()];
    await test.database.system(async (tx) => {
      for (const [tenant, group] of [
        ['acme', mine],
        ['other', theirs],
      ]) {
        await tx.query('INSERT INTO device_groups (tenant_id, group_id, name) VALUES ($1, $2, $3)', [
          tenant,
          group,
          'g',
        ]);
      }
    });
    const unknown = await test.database.tenant('acme', (tx) => unknownGroups(tx, 'acme', [mine, theirs, absent]));
    expect(unknown).to.deep.equal([theirs, absent]);
  });

  it('stores only the hash of a device key, and announces its revocation with the transaction', async () => {
    const made = await make();
    const notified: string[] = [];
    let listening = false;
    test.database.listen(
      [revocationChannel],
      (_, payload) => notified.push(payload),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
    const key = await test.database.tenant('acme', (tx) => mintDeviceKey(tx, 'acme', made.device_id));
    const stored = await test.database.system((tx) =>
      tx.query(`SELECT * FROM api_keys WHERE device_id = $1`, [made.device_id]),
    );
    expect(JSON.stringify(stored.rows)).not.to.contain(key);
    const undone = await test.database
      .tenant('acme', async (tx) => {
        await revokeDeviceKeys(tx, 'acme', [made.device_id]);
        throw new Error('undone');
      })
      .catch((error: Error) => error.message);
    expect(undone).to.equal('undone');
    const rotate = (graceSeconds: number) =>
      test.database.tenant('acme', async (tx) => {
        const holder = { tenantId: 'acme', deviceId: made.device_id };
        const { apiKey } = await deviceCredentials().rotate(tx, holder, { type: 'api_key' }, graceSeconds);
        return apiKey;
      });
    const next = await rotate(0);
    await eventually(() => notified.length > 0);
    expect(notified).to.deep.equal([credentialHash(key).toString('hex')]);
    await rotate(60);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ in_force: boolean; ends: boolean }>(
        `SELECT revoked_at IS NULL AS in_force, expires_at IS NOT NULL AS ends FROM api_keys
         WHERE device_id = $1 ORDER BY key_id`,
        [made.device_id],
      ),
    );
    // The first key, which had ended, went with the second rotation.
    expect(rows).to.deep.equal([
      { in_force: true, ends: true },
      { in_force: true, ends: false },
    ]);
    expect(next).not.to.equal(key);
  });
});

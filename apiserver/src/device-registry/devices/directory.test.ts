import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import type { ProfileFacts, ProfileReader } from '../../policies/profile-reader.ts';
import { createDevice, notifyDeviceChanged } from './devices.ts';
import { DeviceDirectory } from './directory.ts';

describe('device directory', () => {
  let test: TestDatabase;
  let directory: DeviceDirectory;
  const profileId = newId();
  let profile: ProfileFacts;
  const reader: ProfileReader = {
    get: async (tenantId, id) => (tenantId === 'acme' && id === profileId ? profile : undefined),
  };

  beforeEach(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme', { defaults: { tags: { site: 'north' }, offline_after_seconds: 60 } });
    await insertTenant(test.database, 'other');
    profile = {
      profileId,
      name: 'pumps',
      type: 'pump',
      defaultTags: { kind: 'pump' },
      telemetrySchema: undefined,
      anchoringMode: 'chain',
      offlineAfterSeconds: 0,
      otaPolicy: undefined,
    };
    directory = new DeviceDirectory(test.database, reader, 3500);
    await listening();
  });
  afterEach(() => test.drop());

  /** Waits until the listener is connected: from then on the directory caches. */
  async function listening(): Promise<void> {
    const id = await make();
    await eventually(async () => {
      await rename(id, newId(), false);
      const before = await nameOf(id);
      await rename(id, newId(), false);
      return (await nameOf(id)) === before;
    });
  }
  const make = async (profileOf = '', tenantId = 'acme') => {
    const deviceId = newId();
    const device = { tenantId, deviceId, name: 'first', hardwareId: deviceId, profileId: profileOf, groupIds: [] };
    await test.database.tenant(tenantId, (tx) => createDevice(tx, { ...device, credentialType: 'api_key' }));
    return deviceId;
  };
  const rename = (id: string, name: string, notify: boolean) =>
    test.database.system(async (tx) => {
      await tx.query('UPDATE devices SET name = $2 WHERE device_id = $1', [id, name]);
      if (notify) await notifyDeviceChanged(tx, 'acme', id);
    });
  /**
   * Waits for a notification sent now. They arrive in the order of their commits, so all earlier ones have arrived too.
   */
  const settled = async () => {
    const last = await make();
    await nameOf(last);
    await rename(last, 'settled', true);
    await eventually(async () => (await nameOf(last)) === 'settled');
  };
  const facts = async (id: string) => (await directory.lookup('acme', [id])).get(id);
  const nameOf = async (id: string) => (await facts(id))?.name;
  const notify = (channel: string, payload: string) =>
    test.database.system((tx: Transaction) => tx.query('SELECT pg_notify($1, $2)', [channel, payload]));

  it('returns the devices of the tenant and omits deleted, foreign and unknown ones', async () => {
    const [mine, deleted] = [await make(), await make()];
    const theirs = await make('', 'other');
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [deleted]),
    );
    const found = await directory.lookup('acme', [mine, mine, deleted, theirs, newId(), 'nonsense', '']);
    expect([...found.keys()]).to.deep.equal([mine]);
  });

  it('resolves profile, tenant and platform', async () => {
    const [plain, profiled] = [await make(), await make(profileId)];
    expect(await facts(plain)).to.deep.include({
      type: '',
      effectiveTags: { site: 'north' },
      anchoringMode: 'merkle',
      offlineAfterSeconds: 60,
    });
    expect(await facts(profiled)).to.deep.include({
      type: 'pump',
      profileId,
      effectiveTags: { kind: 'pump' },
      anchoringMode: 'chain',
      offlineAfterSeconds: 60,
    });
  });

  it('returns cached facts until a change is notified', async () => {
    const id = await make();
    await settled();
    expect(await nameOf(id)).to.equal('first');
    await rename(id, 'second', false);
    expect(await nameOf(id)).to.equal('first');
    await rename(id, 'third', true);
    await eventually(async () => (await nameOf(id)) === 'third');
  });

  it('evicts the devices of a changed profile and of a changed tenant', async () => {
    const [plain, profiled] = [await make(), await make(profileId)];
    await settled();
    await directory.lookup('acme', [plain, profiled]);
    profile = { ...profile, type: 'valve' };
    await notify('kellet_profiles', `acme/${profileId}`);
    await eventually(async () => (await facts(profiled))?.type === 'valve');
    await test.database.system((tx) => tx.query(`UPDATE tenants SET defaults = '{"offline_after_seconds": 5}'`));
    expect((await facts(plain))?.offlineAfterSeconds).to.equal(60);
    await notify('kellet_tenants', 'acme');
    await eventually(async () => (await facts(plain))?.offlineAfterSeconds === 5);
  });

  it('visits no other devices when a profile or a tenant changes, however often', async () => {
    directory = new DeviceDirectory(test.database, reader);
    await listening();
    const devices = Array.from({ length: 50_000 }, () => newId());
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id) SELECT 'acme', d, 'first', d FROM unnest($1::uuid[]) AS d`,
        [devices],
      ),
    );
    for (let at = 0; at < devices.length; at += 5000) await directory.lookup('acme', devices.slice(at, at + 5000));
    await settled();
    const before = process.cpuUsage();
    for (const channel of ['kellet_profiles', 'kellet_tenants']) {
      await test.database.system((tx) =>
        tx.query(`SELECT pg_notify($1, 'other/' || n) FROM generate_series(1, 300) AS n`, [channel]),
      );
    }
    await settled();
    // Visiting all takes 10 ms or more each time.
    expect(process.cpuUsage(before).user / 1000).to.be.below(2000);
    await rename(devices[0]!, 'second', false);
    expect(await nameOf(devices[0]!)).to.equal('first');
    await notify('kellet_tenants', 'acme');
    await eventually(async () => (await nameOf(devices[0]!)) === 'second');
  });

  it('is bounded, and evicts the least recently used first', async () => {
    const [first, second, third, fourth] = await Promise.all([make(), make(), make(), make()]);
    await settled();
    for (const id of [first, second, third, first, fourth]) await facts(id);
    const ids = [first, second, third];
    for (const id of ids) await rename(id, 'second', false);
    expect(await nameOf(first)).to.equal('first');
    expect(await nameOf(second)).to.equal('second');
  });

  it('counts bytes: a device with many tags takes the place of several', async () => {
    const [first, second, large] = await Promise.all([make(), make(), make()]);
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET tags = $2 WHERE device_id = $1', [
        large,
        JSON.stringify({ note: 'x'.repeat(1200) }),
      ]),
    );
    await settled();
    for (const id of [first, second, large]) await facts(id);
    for (const id of [first, second, large]) await rename(id, 'second', false);
    expect(await nameOf(large)).to.equal('first');
    expect(await nameOf(second)).to.equal('first');
    expect(await nameOf(first)).to.equal('second');
  });

  it('caches nothing while the listener is disconnected', async () => {
    const id = await make();
    await settled();
    expect(await nameOf(id)).to.equal('first');
    await test.database.system(async (tx) => {
      await tx.query('UPDATE devices SET name = $2 WHERE device_id = $1', [id, 'missed']);
      await tx.query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'kellet-listener'`);
    });
    await eventually(async () => (await nameOf(id)) === 'missed');
  });

  describe('with large schemas', () => {
    const keys = Object.fromEntries(
      Array.from({ length: 16 }, (_, key) => [
        `k${key}`,
        { type: 'string', enum: Array.from({ length: 128 }, (__, value) => `v${value}`) },
      ]),
    );
    const insertProfile = async () => {
      const id = newId();
      await test.database.tenant('acme', (tx) =>
        tx.query(
          `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
           VALUES ('acme', $1, 'ns', $2, $2, $3)`,
          [id, id, JSON.stringify({ type: 'first', telemetry_schema: { keys } })],
        ),
      );
      return id;
    };
    const schemaOf = async (id: string) => (await facts(id))!.telemetrySchema!;
    const withRoom = async (bytes: number) => {
      directory = new DeviceDirectory(test.database, createProfileReader(test.database), bytes);
      await listening();
    };

    it('holds the schema of a profile once, however its devices are looked up', async () => {
      await withRoom(1_000_000);
      const profileOf = await insertProfile();
      const devices = await Promise.all(Array.from({ length: 6 }, () => make(profileOf)));
      await settled();
      const [first, ...others] = devices.slice(0, 3);
      const schema = await schemaOf(first!);
      expect(Object.keys(schema.keys)).to.have.length(16);
      for (const id of others) expect(await schemaOf(id)).to.equal(schema);
      // Also those that are looked up at once.
      const together = await Promise.all(devices.slice(3).map(schemaOf));
      for (const one of together) expect(one).to.equal(schema);
    });

    it('holds the schema that a tenant’s devices without a profile have once', async () => {
      await withRoom(1_000_000);
      await test.database.system((tx) =>
        tx.query(`UPDATE tenants SET defaults = $1 WHERE tenant_id = 'acme'`, [
          JSON.stringify({ telemetry_schema: { keys } }),
        ]),
      );
      const [first, second, third] = [await make(), await make(), await make()];
      await settled();
      const schema = await schemaOf(first);
      expect(await schemaOf(second)).to.equal(schema);
      await test.database.system((tx) =>
        tx.query(`UPDATE tenants SET defaults = '{"telemetry_schema": {"keys": {}}}' WHERE tenant_id = 'acme'`),
      );
      expect((await schemaOf(third)).keys).to.deep.equal({});
    });

    it('shows a change of the profile to a device that is looked up afterwards', async () => {
      await withRoom(1_000_000);
      const profileOf = await insertProfile();
      const [first, second] = [await make(profileOf), await make(profileOf)];
      await settled();
      expect((await facts(first))!.type).to.equal('first');
      await test.database.system((tx) =>
        tx.query(`UPDATE profiles SET document = document || '{"type": "second"}' WHERE profile_id = $1`, [profileOf]),
      );
      expect((await facts(second))!.type).to.equal('second');
    });

    it('reads many profiles in one lookup of a tenant at a time, and few at once', async () => {
      let [running, most, reads] = [0, 0, 0];
      const profiles = createProfileReader(test.database);
      const counting: ProfileReader = {
        get: async (tenantId, id, known) => {
          running += 1;
          most = Math.max(most, running);
          if (!known) reads += 1;
          return profiles.get(tenantId, id, known).finally(() => (running -= 1));
        },
      };
      directory = new DeviceDirectory(test.database, counting, 20_000_000);
      await listening();
      const schemas = await Promise.all(Array.from({ length: 20 }, insertProfile));
      const fleets = await Promise.all(
        Array.from({ length: 4 }, () => Promise.all(schemas.map((profileOf) => make(profileOf)))),
      );
      await settled();
      [most, reads] = [0, 0];
      const found = await Promise.all(fleets.map((devices) => directory.lookup('acme', devices)));
      expect(found.map(({ size }) => size)).to.deep.equal([20, 20, 20, 20]);
      expect(reads).to.equal(20);
      // The first one reads, and those that have waited for their turn compare what it has read.
      expect(most).to.equal(1);
    });

    it('is bounded in bytes with the schemas, and counts a schema once', async () => {
      await withRoom(300_000);
      const schemas = await Promise.all(Array.from({ length: 6 }, insertProfile));
      const many = await Promise.all(Array.from({ length: 20 }, () => make(schemas[0])));
      const others = await Promise.all(schemas.slice(1).map((id) => make(id)));
      await settled();
      const cached = async (ids: readonly string[]) => {
        for (const id of ids) await rename(id, 'second', false);
        const names = await Promise.all(ids.map(nameOf));
        for (const id of ids) await rename(id, 'first', true);
        await settled();
        return names.filter((name) => name === 'first').length;
      };
      for (const id of many) await facts(id);
      expect(await cached(many)).to.equal(20);
      // A schema takes some 70,000 bytes.
      for (const id of others) await facts(id);
      expect(await cached(others.toReversed())).to.be.within(3, 4);
    });

    it('has room again for others once the devices with large schemas have gone', async () => {
      await withRoom(300_000);
      for (let round = 0; round < 8; round += 1) {
        const id = await make(await insertProfile());
        await facts(id);
        directory.evict('acme', id);
      }
      const plain = await Promise.all(Array.from({ length: 100 }, () => make()));
      await settled();
      for (const id of plain) await facts(id);
      for (const id of plain) await rename(id, 'second', false);
      expect(await Promise.all(plain.map(nameOf))).to.deep.equal(plain.map(() => 'first'));
    });
  });

  describe('by references', () => {
    const referenceTo = (id: string) => ({
      keyIn: (tenantId: string) => `${tenantId}/${id}`,
      found: undefined as unknown,
    });
    const namesOf = async (ids: readonly string[], references: ReturnType<typeof referenceTo>[], tenantId = 'acme') =>
      (await directory.lookupEach(tenantId, ids, references)).map((device) => device?.name);

    it('returns what is cached until a change is notified, to its own tenant only', async () => {
      const id = await make();
      await settled();
      const references = [referenceTo(id)];
      for (let request = 0; request < 20; request += 1)
        expect(await namesOf([id], references)).to.deep.equal(['first']);
      expect(await namesOf([id], references, 'other')).to.deep.equal([undefined]);
      await rename(id, 'second', false);
      expect(await namesOf([id], references)).to.deep.equal(['first']);
      await rename(id, 'third', true);
      await eventually(async () => (await namesOf([id], references))[0] === 'third');
    });

    it('returns nothing that another directory has found', async () => {
      const id = await make();
      await settled();
      const references = [referenceTo(id)];
      expect(await namesOf([id], references)).to.deep.equal(['first']);
      expect(await namesOf([id], references)).to.deep.equal(['first']);
      await rename(id, 'second', false);
      const other = new DeviceDirectory(test.database, reader, 3500);
      const found = await other.lookupEach('acme', [id], references);
      expect(found.map((device) => device?.name)).to.deep.equal(['second']);
    });

    it('keeps devices in the cache that are in use, and returns none that has left it', async () => {
      const [first, second, third, fourth] = await Promise.all([make(), make(), make(), make()]);
      await settled();
      for (const id of [first, second, third]) await facts(id);
      const references = [referenceTo(first)];
      for (let request = 0; request < 20; request += 1) await namesOf([first], references);
      const gone = [referenceTo(second)];
      await directory.lookupEach('acme', [second], gone);
      for (const id of [third, fourth]) await facts(id);
      await facts(await make());
      for (const id of [first, second]) await rename(id, 'second', false);
      expect(await namesOf([second], gone)).to.deep.equal(['second']);
    });
  });
});

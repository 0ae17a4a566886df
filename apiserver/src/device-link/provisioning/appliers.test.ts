import { create } from '@bufbuild/protobuf';
import type { DeviceProfileSpec, ProvisioningTemplateSpec } from '@kellet/crds';
import { Kind, RemoveRequestSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import type { Dispatcher } from '../../control/dispatcher.ts';
import { listWorkingCopies } from '../../control/working-copies.ts';
import { createDevice } from '../../device-registry/devices/devices.ts';
import { isId, newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createProfileReader } from './profiles.ts';
import { mintProvisionKey, provisionKeyHash } from './provision-key.ts';
import { applyProfile, applyTemplate, provisioningDispatcher } from './testing/test-fixtures.ts';

describe('manifests of profiles and templates', () => {
  let test: TestDatabase;
  let dispatcher: Dispatcher;
  let notified: string[];

  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    dispatcher = provisioningDispatcher(test.database);
    notified = [];
    let listening = false;
    test.database.listen(
      ['kellet_profiles'],
      (_channel, payload) => notified.push(payload),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
  });
  after(() => test.drop());

  const acme = (name: string, overrides: object = {}) => ({ tenantId: 'acme', name, ...overrides });
  const reader = () => createProfileReader(test.database);
  const remove = async (kind: Kind, name: string, detach = false) => {
    const meta = { tenantId: 'acme', namespace: 'kellet-acme', name };
    return (await dispatcher.remove(create(RemoveRequestSchema, { meta, kind, detach }))).refusal;
  };
  const withDevice = async (profileId: string) => {
    const deviceId = newId();
    const device = { tenantId: 'acme', deviceId, name: 'd', hardwareId: deviceId, profileId, groupIds: [] };
    await test.database.tenant('acme', (tx) => createDevice(tx, { ...device, credentialType: 'api_key' }));
    return deviceId;
  };

  it('return another digest once the row has been changed by hand, until they are applied again', async () => {
    const key = mintProvisionKey();
    const apply = async (): Promise<bigint[]> => [
      (await applyProfile(dispatcher, acme('drifting'), { type: 'pump', defaultTags: { site: 'north' } })).digest,
      (await applyTemplate(dispatcher, acme('drifting'), key, { profileRef: { name: 'drifting' } })).digest,
    ];
    const everything = { pageSize: 0, pageToken: '' };
    const listed = async (): Promise<(bigint | undefined)[]> => {
      const copies: { kind?: Kind; name?: string; digest?: bigint }[] = [];
      for await (const message of listWorkingCopies(test.database, everything, new AbortController().signal)) {
        copies.push(...message.workingCopies!);
      }
      return [Kind.DEVICE_PROFILE, Kind.PROVISIONING_TEMPLATE].map(
        (kind) => copies.find((copy) => copy.kind === kind && copy.name === 'drifting')?.digest,
      );
    };
    const applied = await apply();
    expect(applied.every((digest) => digest > 0n)).to.equal(true);
    expect(await listed()).to.deep.equal(applied);
    expect(await apply()).to.deep.equal(applied);
    for (const sql of [
      `UPDATE profiles SET document = '{}' WHERE resource_name = 'drifting'`,
      `UPDATE provisioning_templates SET enabled = false WHERE resource_name = 'drifting'`,
      `UPDATE provisioning_templates SET key_hash = sha256('x') WHERE resource_name = 'drifting'`,
      `DELETE FROM provision_keys WHERE key_hash =
         (SELECT key_hash FROM provisioning_templates WHERE resource_name = 'drifting')`,
      `DELETE FROM provisioning_templates WHERE resource_name = 'drifting'`,
    ]) {
      await test.database.system((tx) => tx.query(sql));
      expect(await listed(), sql).to.not.deep.equal(applied);
      expect(await apply(), sql).to.deep.equal(applied);
      expect(await listed(), sql).to.deep.equal(applied);
    }
  });

  describe('of a profile', () => {
    it('become what devices inherit, under an id derived from the name', async () => {
      const { id, refusal, observed } = await applyProfile(dispatcher, acme('pumps', { displayName: 'Pumps' }), {
        type: 'pump',
        defaultTags: { site: 'north' },
        anchoringPolicy: { mode: 'PerEvent' },
        telemetrySchema: { keys: { pressure: { type: 'Number', min: 0 } }, additionalKeys: 'Reject' },
        otaPolicy: { maxAttempts: 2 },
        offlineAfterSeconds: 60,
      });
      expect(refusal).to.equal(undefined);
      expect(observed.value).to.include({ devices: 0 });
      expect(isId(id)).to.equal(true);
      const facts = await reader().get('acme', id);
      expect(facts).to.deep.include({
        profileId: id,
        name: 'Pumps',
        type: 'pump',
        defaultTags: { site: 'north' },
        anchoringMode: 'per_event',
        offlineAfterSeconds: 60,
      });
      expect(facts!.telemetrySchema!.keys['pressure']).to.include({ min: 0 });
      expect(facts!.otaPolicy).to.include({ maxAttempts: 2 });
      const find = (tenant: string) =>
        test.database.read(tenant, (tx) => reader().idsByName(tx, tenant, ['Pumps', 'None']));
      expect(await find('acme')).to.deep.equal(new Map([['Pumps', id]]));
      expect(await find('other')).to.deep.equal(new Map());
    });

    it('belong to their tenant alone', async () => {
      const ours = await applyProfile(dispatcher, acme('twin'), { type: 'ours' });
      const theirs = await applyProfile(dispatcher, { tenantId: 'other', name: 'twin' }, { type: 'theirs' });
      expect(theirs.id).not.to.equal(ours.id);
      expect(await reader().get('acme', theirs.id)).to.equal(undefined);
      expect(await reader().get('other', ours.id)).to.equal(undefined);
      expect(await reader().get('acme', 'no id')).to.equal(undefined);
    });

    it('notify directories of changes only', async () => {
      const { id } = await applyProfile(dispatcher, acme('news'), { type: 'a' });
      const key = `acme/${id}`;
      const count = () => notified.filter((payload) => payload === key).length;
      await applyProfile(dispatcher, acme('news'), { type: 'a' });
      await applyProfile(dispatcher, acme('news', { generation: 1n }), { type: 'b' });
      // Notifications arrive in the order of their commits: after this one no earlier one is missing.
      const last = await applyProfile(dispatcher, acme('last'));
      await eventually(() => notified.includes(`acme/${last.id}`));
      expect(count()).to.equal(2);
    });

    it('are never replaced by an older version, also by name alone, except by another resource of the name', async () => {
      const now = { resourceVersion: '11', generation: 1n, displayName: 'New' };
      const { id } = await applyProfile(dispatcher, acme('order', now), { type: 'pump' });
      const older = applyProfile(dispatcher, acme('order', { ...now, resourceVersion: '9', displayName: 'Old' }), {
        type: 'pump',
      });
      expect(await older.catch((error: unknown) => error)).to.include({ code: 'ABORTED' });
      expect((await reader().get('acme', id))!.name).to.equal('New');
      await applyProfile(dispatcher, acme('order', { resourceVersion: '3', uid: 'made again' }), { type: 'again' });
      expect((await reader().get('acme', id))!.type).to.equal('again');
    });

    it('are rejected naming the invalid field, and leave the previous state', async () => {
      const { id } = await applyProfile(dispatcher, acme('wrong'), { type: 'right' });
      for (const [spec, message] of [
        [{ anchoringPolicy: { mode: 'sometimes' } }, 'spec.anchoringPolicy.mode'],
        [{ telemetrySchema: { keys: { t: { type: 'bool' } } } }, 'type must be number or string'],
        [{ otaPolicy: { window: { start: '1:00', end: '02:00' } } }, 'spec.otaPolicy.window.start must be HH:MM'],
        [
          { otaPolicy: { window: { start: '01:00', end: '02:00', timeZone: 'Mars/Olympus' } } },
          'spec.otaPolicy.window.timeZone',
        ],
      ] as const) {
        const { refusal } = await applyProfile(
          dispatcher,
          acme('wrong', { generation: 2n }),
          spec as DeviceProfileSpec,
        );
        expect(refusal).to.include({ reason: 'InvalidSpec' });
        expect(refusal!.message).to.include(message);
      }
      expect((await reader().get('acme', id))!.type).to.equal('right');
    });

    it('have a telemetry schema of at most 64 KiB, unless an earlier version accepted a larger one', async () => {
      const schema = (keys: number): DeviceProfileSpec => ({
        telemetrySchema: {
          keys: Object.fromEntries(
            Array.from({ length: keys }, (_, key) => [
              `key-${key}`,
              { type: 'String', enum: Array.from({ length: 128 }, (_, value) => `${value}`.padStart(80, 'x')) },
            ]),
          ),
        },
      });
      const apply = async (spec: DeviceProfileSpec) => (await applyProfile(dispatcher, acme('large'), spec)).refusal;
      expect(await apply(schema(6))).to.equal(undefined);
      expect(await apply(schema(4))).to.equal(undefined);
      expect(await apply(schema(7))).to.deep.include({
        reason: 'InvalidSpec',
        message: 'spec.telemetrySchema must be at most 65536 bytes of JSON',
      });
      const keys = async () => {
        const ids = await test.database.read('acme', (tx) => reader().idsByName(tx, 'acme', ['large']));
        const found = await reader().get('acme', ids.get('large')!);
        return Object.keys(found!.telemetrySchema!.keys).length;
      };
      expect(await keys()).to.equal(4);

      await applyProfile(dispatcher, acme('small'), schema(1));
      await test.database.system((tx) =>
        tx.query(
          `UPDATE profiles SET document = jsonb_set(document, '{telemetry_schema,keys}', (
             SELECT jsonb_object_agg('key-' || n, v) FROM jsonb_each(document->'telemetry_schema'->'keys') AS e (k, v),
               generate_series(1, 8) AS n)) WHERE resource_name = 'large'`,
        ),
      );
      expect(await keys()).to.equal(8);
      expect(await apply({ ...schema(8), type: 'changed' })).to.equal(undefined);
      expect(await apply(schema(5))).to.equal(undefined);
      expect((await apply(schema(8)))?.reason).to.equal('InvalidSpec');
    });

    it('stay while in use; without a namespace they stay for their devices', async () => {
      const { id } = await applyProfile(dispatcher, acme('used'), { type: 'pump' });
      await withDevice(id);
      await withDevice(id);
      await applyTemplate(dispatcher, acme('user'), mintProvisionKey(), { profileRef: { name: 'used' } });
      expect(await remove(Kind.DEVICE_PROFILE, 'used')).to.deep.include({
        reason: 'InUse',
        message: 'the profile is used by 2 devices, 1 provisioning template',
      });
      expect(await remove(Kind.DEVICE_PROFILE, 'used', true)).to.equal(undefined);
      expect((await reader().get('acme', id))!.type).to.equal('pump');
      const late = await applyTemplate(dispatcher, acme('late'), mintProvisionKey(), { profileRef: { name: 'used' } });
      expect(late.refusal?.reason).to.equal('ReferenceNotFound');
      const again = await applyProfile(dispatcher, acme('used', { uid: 'again' }), { type: 'pump' });
      expect(again.id).to.equal(id);
      expect(again.observed.value).to.include({ devices: 2 });
      expect(
        (await applyTemplate(dispatcher, acme('late'), mintProvisionKey(), { profileRef: { name: 'used' } })).refusal,
      ).to.equal(undefined);
    });

    it('are deleted when unused, and deleting twice is not an error', async () => {
      const { id } = await applyProfile(dispatcher, acme('gone'));
      expect(await remove(Kind.DEVICE_PROFILE, 'gone')).to.equal(undefined);
      expect(await remove(Kind.DEVICE_PROFILE, 'gone')).to.equal(undefined);
      expect(await reader().get('acme', id)).to.equal(undefined);
    });
  });

  describe('of a template', () => {
    const stateOf = async (name: string, key: string, spec: Parameters<typeof applyTemplate>[3] = {}) => {
      const { observed, refusal } = await applyTemplate(dispatcher, acme(name), key, spec);
      expect(refusal).to.equal(undefined);
      return observed.case === 'provisioningTemplate' ? observed.value : undefined;
    };

    it('report the state of their key', async () => {
      const key = mintProvisionKey();
      expect(await stateOf('states', key)).to.include({ keyState: 'active', claims: 0 });
      expect(await stateOf('states', key, { suspended: true })).to.include({ keyState: 'disabled' });
      const expiring = await stateOf('states', key, { expiresInSeconds: 60 });
      expect(expiring!.keyState).to.equal('active');
      expect(Number(expiring!.keyExpiresAt!.seconds) - Date.now() / 1000).to.be.within(50, 61);
      await test.database.system((tx) =>
        tx.query(`UPDATE provision_keys SET first_seen_at = now() - interval '1 hour' WHERE key_hash = $1`, [
          provisionKeyHash(key),
        ]),
      );
      expect(await stateOf('states', key, { expiresInSeconds: 60 })).to.include({ keyState: 'expired' });
      // Another key is first seen now, and the old one keeps its own time.
      expect(await stateOf('states', mintProvisionKey(), { expiresInSeconds: 60 })).to.include({ keyState: 'active' });
      expect(await stateOf('states', key, { expiresInSeconds: 60 })).to.include({ keyState: 'expired' });
    });

    it('are rejected when a reference is missing', async () => {
      const key = mintProvisionKey();
      const profile = await applyTemplate(dispatcher, acme('refs'), key, { profileRef: { name: 'nowhere' } });
      expect(profile.refusal).to.deep.include({
        reason: 'ReferenceNotFound',
        message: 'spec.profileRef: there is no DeviceProfile nowhere',
      });
      for (const group of [newId(), 'a-name']) {
        const groups = await applyTemplate(dispatcher, acme('refs'), key, { defaultGroups: [group] });
        expect(groups.refusal).to.deep.include({ reason: 'ReferenceNotFound' });
      }
    });

    it('are applied although a group that they already named was deleted, so that they can be suspended', async () => {
      const key = mintProvisionKey();
      const group = newId();
      const setGroup = (sql: string) => test.database.system((tx) => tx.query(sql, [group]));
      await setGroup(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ('acme', $1, 'north')`);
      await stateOf('grouped', key, { defaultGroups: [group] });
      await setGroup('DELETE FROM device_groups WHERE group_id = $1');
      expect(await stateOf('grouped', key, { defaultGroups: [group], suspended: true })).to.include({
        keyState: 'disabled',
      });
      expect(await stateOf('grouped', mintProvisionKey(), { defaultGroups: [group] })).to.include({
        keyState: 'active',
      });
      const other = newId();
      const { refusal } = await applyTemplate(dispatcher, acme('grouped'), key, { defaultGroups: [group, other] });
      expect(refusal?.message).to.equal(`spec.defaultGroups: there is no device group ${other}`);
      await applyTemplate(dispatcher, acme('grouped'), key);
      const again = await applyTemplate(dispatcher, acme('grouped'), key, { defaultGroups: [group] });
      expect(again.refusal?.reason).to.equal('ReferenceNotFound');
    });

    it('are rejected when a field is invalid', async () => {
      const key = mintProvisionKey();
      for (const [spec, message] of [
        [{ hardwareIdPattern: '' }, 'spec.hardwareIdPattern'],
        [{ hardwareIdPattern: 'x'.repeat(257) }, 'spec.hardwareIdPattern'],
        [{ expiresInSeconds: 315_360_001 }, 'spec.expiresInSeconds'],
        [{ credentialType: 'password' }, 'spec.credentialType'],
        [{ keySha256: 'abc' }, 'spec.keySha256'],
        [{ keySha256: '' }, 'spec.keySha256'],
        [{ keyBinding: 'ABC' }, 'spec.keyBinding'],
      ] as const) {
        const { refusal } = await applyTemplate(
          dispatcher,
          acme('fields'),
          key,
          spec as Partial<ProvisioningTemplateSpec>,
        );
        expect(refusal, JSON.stringify(spec)).to.include({ reason: 'InvalidSpec' });
        expect(refusal!.message).to.include(message);
      }
    });

    it('share no key within a tenant', async () => {
      const key = mintProvisionKey();
      expect((await applyTemplate(dispatcher, acme('owner'), key)).refusal).to.equal(undefined);
      expect((await applyTemplate(dispatcher, acme('second'), key)).refusal?.reason).to.equal('InvalidSpec');
      await remove(Kind.PROVISIONING_TEMPLATE, 'owner');
      expect((await applyTemplate(dispatcher, acme('second'), key)).refusal).to.equal(undefined);
    });

    it('require the binding of a hash that the tenant has not used before', async () => {
      const key = mintProvisionKey();
      const unbound = () => applyTemplate(dispatcher, acme('unbound'), key, { keyBinding: '' });
      expect((await unbound()).refusal).to.deep.include({
        reason: 'InvalidSpec',
        message:
          'spec.keyBinding is required with spec.keySha256: the SHA-256 of the text kellet-provision-key:acme:<key>',
      });
      expect((await applyTemplate(dispatcher, acme('unbound'), key)).refusal).to.equal(undefined);
      // The recorded binding stays, also when a later manifest omits it.
      expect((await unbound()).refusal).to.equal(undefined);
      // A key from before bindings existed needs none.
      await test.database.system((tx) =>
        tx.query('UPDATE provision_keys SET binding = NULL WHERE key_hash = $1', [provisionKeyHash(key)]),
      );
      expect((await unbound()).refusal).to.equal(undefined);
    });

    it('are never replaced by an older version: a rotated key stays rotated', async () => {
      const [old, rotated] = [mintProvisionKey(), mintProvisionKey()];
      await applyTemplate(dispatcher, acme('rotating', { resourceVersion: '9' }), old);
      await applyTemplate(dispatcher, acme('rotating', { resourceVersion: '10' }), rotated);
      const older = applyTemplate(dispatcher, acme('rotating', { resourceVersion: '9' }), old);
      expect(await older.catch((error: unknown) => error)).to.include({ code: 'ABORTED' });
      const { rows } = await test.database.system((tx) =>
        tx.query<{ key_hash: Buffer }>(`SELECT key_hash FROM provisioning_templates WHERE resource_name = 'rotating'`),
      );
      expect(rows[0]!.key_hash.equals(provisionKeyHash(rotated))).to.equal(true);
    });
  });
});

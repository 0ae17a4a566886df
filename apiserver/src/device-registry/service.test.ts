import { hash, X509Certificate } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { create, type JsonObject, type MessageInitShape, type MessageShape, toJson } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  Device_Status,
  DeviceEvent_Kind,
  DeviceRegistryService,
  DeviceSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { customerHasUsers } from '../auth/accounts/account-store.ts';
import { revokeDeviceKeys } from '../auth/device-credentials/device-keys.ts';
import { type AuthModule, createAuth } from '../auth/service.ts';
import { csrOf, newKeys } from '../auth/testing/test-certificates.ts';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { clusterAway, MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { RolloutMembership } from '../device-link/ota/rollouts/membership.ts';
import { deleteProfile, findProfile, writeProfile } from '../device-link/provisioning/profile-store.ts';
import { createProfileReader } from '../device-link/provisioning/profiles.ts';
import { mintProvisionKey } from '../device-link/provisioning/provision-key.ts';
import { templatesOfGroup } from '../device-link/provisioning/template-store.ts';
import {
  applyProfile,
  applyTemplate,
  provisioningDispatcher,
} from '../device-link/provisioning/testing/test-fixtures.ts';
import type { Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { codeOf, refusal } from '../platform/testing/refusals.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../platform/testing/test-database.ts';
import { setVersions } from './devices/devices.ts';
import { unknownGroups } from './devices/group-members.ts';
import { followGroups } from './groups/group-store.ts';
import { sweepHistory } from './history/history-sweep.ts';
import { createDeviceRegistry, type DeviceRegistryModule } from './service.ts';

const { method } = DeviceRegistryService;

describe('device registry service', () => {
  let test: TestDatabase;
  let clock: MovableClock;
  let auth: AuthModule;
  let devices: DeviceRegistryModule;
  const registry = new ServiceRegistry();
  const pumps = { profileId: newId() };
  const insertProfile = async (profileId: string): Promise<void> => {
    const profile = create(ProfileSchema, { type: 'pump', defaultTags: { kind: 'pump', site: 'south' } });
    const meta = create(ObjectMetaSchema, { tenantId: 'acme', namespace: 'kellet-acme', name: profileId });
    await test.database.tenant('acme', (tx) => writeProfile(tx, profileId, meta, profile));
  };

  before(async () => {
    test = await createTestDatabase();
    clock = new MovableClock();
    await insertTenant(test.database, 'acme', { defaults: { tags: { site: 'north' } } });
    await insertTenant(test.database, 'other');
    await insertProfile(pumps.profileId);
    const platform = testPlatform(test.database, clock);
    auth = createAuth(platform, clusterAway, unknownGroups, async () => []);
    devices = createDeviceRegistry(
      platform,
      createProfileReader(test.database),
      new RolloutMembership(platform.clock),
      { ofGroup: templatesOfGroup, customerHasUsers },
    );
    devices.register(registry);
    await devices.start?.();
  });
  after(async () => {
    await devices.stop?.();
    await test.drop();
  });

  const call = <M extends (typeof method)[keyof typeof method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = 'acme',
  ) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext(publicCaller, { tenantId }),
    );
  const make = async (request: MessageInitShape<typeof method.createDevice.input> = {}, tenantId = 'acme') => {
    const { device, apiKey } = await call(method.createDevice, { hardwareId: newId(), ...request }, tenantId);
    return { device: device!, apiKey };
  };
  const makeGroup = (name: string = newId(), tenantId = 'acme') => call(method.createDeviceGroup, { name }, tenantId);
  const update = (
    deviceId: string,
    fields: Omit<MessageInitShape<typeof method.updateDevice.input>, '$typeName'>,
    paths: string[],
  ) => call(method.updateDevice, { deviceId, ...fields, updateMask: { paths } });

  describe('devices', () => {
    it('are created with an API key that is returned once and authenticates as the device', async () => {
      const group = await makeGroup();
      const { device, apiKey } = await make({
        name: 'Pump 1',
        hardwareId: 'hw-1',
        profileId: pumps.profileId,
        tags: { site: 'east' },
        groupIds: [group.groupId],
        metadata: { serial: 7, nested: { list: [1, null, 'x'] } },
      });
      expect(toJson(DeviceSchema, device, { useProtoFieldName: true, alwaysEmitImplicit: true })).to.deep.include({
        name: 'Pump 1',
        hardware_id: 'hw-1',
        profile_id: pumps.profileId,
        tags: { site: 'east' },
        effective_tags: { site: 'east', kind: 'pump' },
        group_ids: [group.groupId],
        status: 'offline',
        firmware_version: '',
        credential_type: 'api_key',
        metadata: { serial: 7, nested: { list: [1, null, 'x'] } },
      });
      expect(device.lastSeen).to.equal(undefined);
      const caller = await auth.authenticate(apiKey, '192.0.2.1');
      expect(caller).to.include({ kind: 'device', tenantId: 'acme', deviceId: device.deviceId });
      expect(await call(method.getDevice, { deviceId: device.deviceId.toUpperCase() })).to.deep.equal(device);
    });

    it('cannot renew a certificate that is revoked while they do', async () => {
      const keys = await newKeys();
      const type = Credential_Type.certificate;
      const made = await call(method.createDevice, {
        hardwareId: newId(),
        credentialType: type,
        csr: await csrOf(keys),
      });
      const { deviceId } = made.device!;
      const sha256 = hash('sha256', new X509Certificate(made.certificate!).raw, 'hex');
      const caller = { ...publicCaller, kind: 'device', tenantId: 'acme', deviceId, credentialHash: sha256 } as const;
      const csr = await csrOf(keys);
      const renew = () =>
        registry.unary(
          method.renewDeviceCertificate,
          create(method.renewDeviceCertificate.input, { deviceId, csr }),
          internalContext(caller, { tenantId: 'acme' }),
        );
      let renewed: Promise<unknown> | undefined;
      await test.database.tenant('acme', async (tx) => {
        await tx.query('SELECT FROM devices WHERE device_id = $1 FOR UPDATE', [deviceId]);
        renewed = codeOf(renew());
        await lockWaitedFor(test.database);
        await revokeDeviceKeys(tx, 'acme', [deviceId]);
      });
      expect(await renewed).to.equal('UNAUTHENTICATED');
      const listed = await call(method.listDeviceCertificates, { deviceId, revoked: false });
      expect(listed.deviceCertificates).to.deep.equal([]);
    });

    it('are named after their hardware id by default', async () => {
      expect((await make({ hardwareId: 'hw-unnamed' })).device.name).to.equal('hw-unnamed');
    });

    for (const [name, request, code, word] of [
      ['no hardware id', { hardwareId: '' }, 'INVALID_ARGUMENT', 'hardware_id'],
      ['a NUL', { hardwareId: 'a\0b' }, 'INVALID_ARGUMENT', 'hardware_id'],
      ['a NUL in metadata', { metadata: { a: '\0' } }, 'INVALID_ARGUMENT', 'metadata'],
      ['an empty tag name', { tags: { '': 'x' } }, 'INVALID_ARGUMENT', 'tags'],
      ['an unknown profile', { profileId: newId() }, 'NOT_FOUND', 'profile_id'],
      ['a malformed profile id', { profileId: 'pumps' }, 'NOT_FOUND', 'profile_id'],
      ['an unknown group', { groupIds: [newId()] }, 'NOT_FOUND', 'group_ids'],
      ['a malformed group id', { groupIds: ['x'] }, 'NOT_FOUND', 'group_ids'],
      ['an unknown customer', { customerId: newId() }, 'NOT_FOUND', 'customer_id'],
      [
        'a malformed request for a certificate',
        { credentialType: Credential_Type.certificate, csr: 'x' },
        'INVALID_ARGUMENT',
        'csr',
      ],
      ['no request for a certificate', { credentialType: Credential_Type.certificate }, 'INVALID_ARGUMENT', 'csr'],
      ['a request for a certificate beside a key', { csr: 'x' }, 'INVALID_ARGUMENT', 'csr'],
      ['an unknown credential type', { credentialType: 9 as Credential_Type }, 'INVALID_ARGUMENT', 'credential_type'],
    ] as const) {
      it(`are rejected with ${name}, leaving nothing behind`, async () => {
        const hardwareId = newId();
        const wanted = { hardwareId, ...request } as MessageInitShape<typeof method.createDevice.input>;
        const error = await refusal(call(method.createDevice, wanted));
        expect([error.code, error.message]).to.satisfy(([c, m]: [string, string]) => c === code && m.includes(word));
        expect((await call(method.listDevices, { hardwareId })).devices).to.deep.equal([]);
      });
    }

    for (const [what, attempt] of [
      ['a creation', (profileId: string) => make({ profileId })],
      ['a change', async (profileId: string) => update((await make()).device.deviceId, { profileId }, ['profile_id'])],
    ] as const) {
      it(`reject a profile whose deletion commits during ${what}`, async () => {
        const profileId = newId();
        await insertProfile(profileId);
        let outcome: Promise<string> | undefined;
        await test.database.tenant('acme', async (tx) => {
          await findProfile(tx, 'acme', profileId, 'FOR UPDATE');
          outcome = codeOf(attempt(profileId));
          await Promise.race([outcome, sleep(500)]);
          await deleteProfile(tx, 'acme', profileId);
        });
        expect(await outcome).to.equal('NOT_FOUND');
      });
    }

    it('have a hardware id that is unique in the tenant', async () => {
      const hardwareId = newId();
      await make({ hardwareId });
      expect(await codeOf(make({ hardwareId }))).to.equal('ALREADY_EXISTS');
      await make({ hardwareId }, 'other');
      const another = await make();
      expect(await codeOf(update(another.device.deviceId, { hardwareId }, ['hardware_id']))).to.equal('ALREADY_EXISTS');
    });

    it('change only the fields of the mask', async () => {
      const [first, second] = [await makeGroup(), await makeGroup()];
      const { device } = await make({ name: 'a', tags: { x: '1' }, groupIds: [first.groupId], metadata: { m: 1 } });
      const id = device.deviceId;
      const renamed = await update(id, { name: 'b', tags: {}, profileId: pumps.profileId }, ['name']);
      expect(renamed).to.deep.include({ name: 'b', tags: { x: '1' }, profileId: '', groupIds: [first.groupId] });
      expect((await update(id, { profileId: pumps.profileId }, ['profile_id'])).effectiveTags).to.deep.equal({
        kind: 'pump',
        site: 'south',
        x: '1',
      });
      expect((await update(id, { profileId: '' }, ['profile_id'])).effectiveTags).to.deep.equal({
        site: 'north',
        x: '1',
      });
      expect((await update(id, { groupIds: [second.groupId] }, ['group_ids'])).groupIds).to.deep.equal([
        second.groupId,
      ]);
      expect((await update(id, {}, ['tags', 'metadata'])).tags).to.deep.equal({});
      const read = await call(method.getDevice, { deviceId: id });
      expect(read.metadata).to.deep.equal({});
      expect(await update(id, {}, [])).to.deep.equal(read);
      expect(await codeOf(update(id, {}, ['status']))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(update(id, { name: '' }, ['name']))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(update(id, { groupIds: [newId()] }, ['group_ids']))).to.equal('NOT_FOUND');
      expect(await codeOf(call(method.updateDevice, { deviceId: id, name: 'c' }))).to.equal('INVALID_ARGUMENT');
    });

    it('disappear when deleted, and their key with them', async () => {
      const { device, apiKey } = await make();
      const deviceId = device.deviceId;
      await devices.directory.lookup('acme', [deviceId]);
      await call(method.deleteDevice, { deviceId });
      expect(await codeOf(auth.authenticate(apiKey, '192.0.2.1'))).to.equal('UNAUTHENTICATED');
      for (const asked of [method.getDevice, method.deleteDevice, method.rotateDeviceCredentials]) {
        expect(await codeOf(call(asked, { deviceId }))).to.equal('NOT_FOUND');
      }
      expect(await codeOf(update(deviceId, { name: 'x' }, ['name']))).to.equal('NOT_FOUND');
      await eventually(async () => (await devices.directory.lookup('acme', [deviceId])).size === 0);
      const again = await make({ hardwareId: device.hardwareId });
      expect(again.device.deviceId).not.to.equal(deviceId);
    });

    it('leave nothing of what was stored in them', async () => {
      const metadata = { text: 'x'.repeat(10_000) };
      const { device } = await make({ tags: { site: 'east' }, metadata });
      await call(method.deleteDevice, { deviceId: device.deviceId });
      const { rows } = await test.database.system((tx) =>
        tx.query('SELECT tags, metadata FROM devices WHERE device_id = $1', [device.deviceId]),
      );
      expect(rows).to.deep.equal([{ tags: {}, metadata: null }]);
    });

    it('get new credentials; the old ones end at once or after the grace period', async () => {
      const { device, apiKey } = await make();
      const deviceId = device.deviceId;
      const works = (key: string) =>
        auth.authenticate(key, '192.0.2.1').then(
          () => true,
          () => false,
        );
      const second = await call(method.rotateDeviceCredentials, { deviceId, graceSeconds: 3600 });
      expect([await works(apiKey), await works(second.apiKey)]).to.deep.equal([true, true]);
      const third = await call(method.rotateDeviceCredentials, { deviceId });
      const keys = [apiKey, second.apiKey, third.apiKey];
      expect(await Promise.all(keys.map(works))).to.deep.equal([false, false, true]);
    });

    it('are shown with the liveness that is not written yet', async () => {
      const { device } = await make();
      const at = clock.now();
      devices.liveness.seen('acme', device.deviceId, at, 'telemetry');
      const shown = await call(method.getDevice, { deviceId: device.deviceId });
      expect(shown.status).to.equal(Device_Status.online);
      // The clock of this test stands still while the database's clock, which liveness uses, advances.
      expect(Number(shown.lastSeen!.seconds)).to.be.within(Math.floor(at / 1000), Math.ceil(Date.now() / 1000));
    });

    it('are invisible to other tenants in every call', async () => {
      const { device } = await make({}, 'other');
      const deviceId = device.deviceId;
      for (const asked of [method.getDevice, method.deleteDevice, method.rotateDeviceCredentials]) {
        for (const id of [deviceId, newId(), 'nonsense', '', "' OR true --"]) {
          expect(await codeOf(call(asked, { deviceId: id }))).to.equal('NOT_FOUND');
        }
      }
      const update_ = { deviceId, name: 'stolen', updateMask: { paths: ['name'] } };
      expect(await codeOf(call(method.updateDevice, update_))).to.equal('NOT_FOUND');
      expect(await call(method.getDevice, { deviceId }, 'other')).to.deep.equal(device);
      const theirGroup = await makeGroup(newId(), 'other');
      expect(await codeOf(make({ groupIds: [theirGroup.groupId] }))).to.equal('NOT_FOUND');
    });
  });

  describe('device list', () => {
    const tenantId = 'acme';
    let ids: Record<'own' | 'profiled' | 'overridden' | 'plain', string>;
    let groupId: string;
    before(async () => {
      for (const table of ['device_certificates', 'devices']) {
        await test.database.system((tx) => tx.query(`DELETE FROM ${table} WHERE tenant_id = $1`, [tenantId]));
      }
      groupId = (await makeGroup()).groupId;
      const of = async (request: MessageInitShape<typeof method.createDevice.input>) =>
        (await make(request)).device.deviceId;
      ids = {
        own: await of({
          name: 'Alpha 50%',
          hardwareId: 'A-1',
          tags: { kind: 'pump', site: 'west' },
          groupIds: [groupId],
        }),
        profiled: await of({ name: 'beta', hardwareId: 'B_1', profileId: pumps.profileId }),
        overridden: await of({ name: 'gamma', hardwareId: 'C-1', profileId: pumps.profileId, tags: { kind: 'valve' } }),
        plain: await of({ name: 'delta', hardwareId: 'AB1' }),
      };
      devices.liveness.seen(tenantId, ids.plain, clock.now(), 'telemetry');
      await eventually(async () => {
        const { rows } = await test.database.system((tx) => tx.query(`SELECT 1 FROM devices WHERE status = 'online'`));
        return rows.length > 0;
      });
    });

    const names = async (request: MessageInitShape<typeof method.listDevices.input>) => {
      const page = await call(method.listDevices, request);
      return page.devices.map((device) => Object.entries(ids).find(([, id]) => id === device.deviceId)?.[0]);
    };
    const cases: [string, () => MessageInitShape<typeof method.listDevices.input>, string[]][] = [
      ['everything', () => ({}), ['own', 'profiled', 'overridden', 'plain']],
      ['online devices', () => ({ status: Device_Status.online }), ['plain']],
      ['offline devices', () => ({ status: Device_Status.offline }), ['own', 'profiled', 'overridden']],
      ['a profile', () => ({ profileId: pumps.profileId }), ['profiled', 'overridden']],
      ['a group', () => ({ groupId }), ['own']],
      ['a hardware id', () => ({ hardwareId: 'B_1' }), ['profiled']],
      ['a tag, own or inherited from the profile', () => ({ tag: ['kind=pump'] }), ['own', 'profiled']],
      ['a tag inherited from the tenant', () => ({ tag: ['site=north'] }), ['plain']],
      ['an overriding tag', () => ({ tag: ['kind=valve'] }), ['overridden']],
      ['several tags at once', () => ({ tag: ['kind=pump', 'site=south'] }), ['profiled']],
      ['a tag without devices', () => ({ tag: ['kind='] }), []],
      ['part of a name in any case', () => ({ q: 'ALPHA' }), ['own']],
      ['part of a hardware id, taken literally', () => ({ q: 'b_1' }), ['profiled']],
      ['a percent sign', () => ({ q: '50%' }), ['own']],
      ['two filters at once', () => ({ q: 'a', status: Device_Status.online }), ['plain']],
    ];
    for (const [name, request, want] of cases) {
      it(`shows ${name}`, async () => expect(await names(request())).to.deep.equal(want));
    }

    it('is read by one transaction: its rows wait for no other connection', async () => {
      let hasRows = false;
      let readsWithRows = 0;
      const database = Object.assign(Object.create(test.database) as typeof test.database, {
        read: <T>(tenant: string, work: (tx: Transaction) => Promise<T>) => {
          if (hasRows) readsWithRows += 1;
          return test.database.read(tenant, (tx) => {
            const query: Transaction['query'] = (text, values) => {
              hasRows ||= text.includes('FROM devices d');
              return tx.query(text, values);
            };
            return work({ hint: (...args) => tx.hint(...args), query });
          });
        },
      });
      const platform = testPlatform(database, clock);
      const usage = { ofGroup: templatesOfGroup, customerHasUsers };
      const counted = new ServiceRegistry();
      const membership = new RolloutMembership(platform.clock);
      createDeviceRegistry(platform, createProfileReader(database), membership, usage).register(counted);
      const context = internalContext({ ...publicCaller, kind: 'user', tenantId });
      const request = create(method.listDevices.input, { profileId: pumps.profileId });
      const { devices: found } = await counted.unary(method.listDevices, request, context);
      expect(found.map(({ effectiveTags }) => effectiveTags['site'])).to.deep.equal(['south', 'south']);
      expect({ hasRows, readsWithRows }).to.deep.equal({ hasRows: true, readsWithRows: 0 });
    });

    it('is paged, with tokens bound to its filters and its tenant', async () => {
      const first = await call(method.listDevices, { pageSize: 3 });
      expect(first.devices).to.have.length(3);
      const last = await call(method.listDevices, { pageSize: 3, pageToken: first.nextPageToken });
      expect([last.devices.length, last.nextPageToken]).to.deep.equal([1, '']);
      expect((await call(method.listDevices, { pageSize: 4 })).nextPageToken).to.equal('');
      const { nextPageToken: pageToken } = first;
      expect(await codeOf(call(method.listDevices, { pageToken, q: 'a' }))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(call(method.listDevices, { pageToken }, 'other'))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(call(method.listDevices, { pageSize: -1 }))).to.equal('INVALID_ARGUMENT');
    });

    for (const [name, request, code] of [
      ['a tag without a value', { tag: ['kind'] }, 'INVALID_ARGUMENT'],
      ['an unknown status', { status: 9 as Device_Status }, 'INVALID_ARGUMENT'],
      ['an unknown profile', { profileId: newId() }, 'NOT_FOUND'],
      ['an unknown group', { groupId: newId() }, 'NOT_FOUND'],
      ['a malformed group id', { groupId: 'x' }, 'NOT_FOUND'],
    ] as const) {
      it(`rejects ${name}`, async () => {
        const list = request as unknown as JsonObject as MessageInitShape<typeof method.listDevices.input>;
        expect(await codeOf(call(method.listDevices, list))).to.equal(code);
      });
    }
  });

  describe('device groups', () => {
    it('are created, listed, renamed, filled, emptied and deleted', async () => {
      const group = await call(method.createDeviceGroup, { name: 'Roof', description: 'on top' });
      expect(group).to.include({ name: 'Roof', description: 'on top', deviceCount: 0 });
      const { groupId } = group;
      const [a, b] = [(await make()).device.deviceId, (await make()).device.deviceId];
      const filled = await call(method.addDevicesToGroup, { groupId, deviceIds: [a, b, a] });
      expect(filled.deviceCount).to.equal(2);
      expect((await call(method.addDevicesToGroup, { groupId, deviceIds: [a] })).deviceCount).to.equal(2);
      expect((await call(method.getDevice, { deviceId: a })).groupIds).to.deep.equal([groupId]);
      await call(method.removeDeviceFromGroup, { groupId, deviceId: a });
      expect(await refusal(call(method.removeDeviceFromGroup, { groupId, deviceId: a }))).to.include({
        code: 'NOT_FOUND',
        message: 'the device is not in the group',
      });
      await call(method.deleteDevice, { deviceId: b });
      expect((await call(method.getDeviceGroup, { groupId })).deviceCount).to.equal(0);
      const request = { groupId, name: 'Attic', description: 'unnamed', updateMask: { paths: ['name'] } };
      expect(await call(method.updateDeviceGroup, request)).to.include({ name: 'Attic', description: 'on top' });
      const list = await call(method.listDeviceGroups, {});
      expect(list.deviceGroups.map((one) => one.groupId)).to.include(groupId);
      await call(method.deleteDeviceGroup, { groupId });
      expect(await codeOf(call(method.getDeviceGroup, { groupId }))).to.equal('NOT_FOUND');
    });

    it('are not deleted while a provisioning template names them', async () => {
      const dispatcher = provisioningDispatcher(test.database);
      await applyProfile(dispatcher, { tenantId: 'acme', name: 'pumps' });
      const { groupId } = await makeGroup();
      const apply = (name: string, defaultGroups: string[]) =>
        applyTemplate(dispatcher, { tenantId: 'acme', name, displayName: name.toUpperCase() }, mintProvisionKey(), {
          defaultGroups,
        });
      const deleted = () => call(method.deleteDeviceGroup, { groupId });
      for (const [name, use] of [
        ['a', 'provisioning template "A"'],
        ['b', 'provisioning template "A" and 1 more'],
      ] as const) {
        expect((await apply(name, [groupId])).refusal).to.equal(undefined);
        const { code, message } = await refusal(deleted());
        expect({ code, message }).to.deep.equal({
          code: 'FAILED_PRECONDITION',
          message: `the device group is used by ${use}`,
        });
      }
      await apply('a', []);
      await apply('b', []);
      await deleted();
    });

    it('take no device once they are deleted, even by a call that has begun before', async () => {
      const { groupId } = await makeGroup();
      const { deviceId } = (await make()).device;
      const adding = await test.database.tenant('acme', async (tx) => {
        await tx.query('DELETE FROM device_groups WHERE group_id = $1', [groupId]);
        const started = codeOf(call(method.addDevicesToGroup, { groupId, deviceIds: [deviceId] }));
        await lockWaitedFor(test.database);
        return { code: started };
      });
      expect(await adding.code).to.equal('NOT_FOUND');
    });

    it('announce every change of their members', async () => {
      const announced: (string | undefined)[] = [];
      followGroups(test.database, (group) => announced.push(group));
      await eventually(() => announced.length > 0);
      const { groupId } = await makeGroup();
      const after = async (change: Promise<unknown>): Promise<(string | undefined)[]> => {
        announced.length = 0;
        await change;
        // Notifications arrive in the order of their commits.
        await call(method.deleteDeviceGroup, { groupId: (await makeGroup()).groupId });
        await eventually(() => announced.length > 0 && announced.at(-1) !== `acme/${groupId}`);
        return announced.slice(0, -1);
      };
      const theGroup = [`acme/${groupId}`];
      const made = make({ groupIds: [groupId] });
      expect(await after(made)).to.deep.equal(theGroup);
      const { deviceId } = (await made).device;
      expect(await after(update(deviceId, { name: 'renamed' }, ['name']))).to.deep.equal([]);
      expect(await after(update(deviceId, { groupIds: [] }, ['group_ids']))).to.deep.equal(theGroup);
      const members = { groupId, deviceIds: [deviceId, (await make()).device.deviceId] };
      expect(await after(call(method.addDevicesToGroup, members))).to.deep.equal(theGroup);
      expect(await after(call(method.addDevicesToGroup, members))).to.deep.equal([]);
      expect(await after(call(method.removeDeviceFromGroup, { groupId, deviceId }))).to.deep.equal(theGroup);
      expect(await after(call(method.deleteDevice, { deviceId: members.deviceIds[1]! }))).to.deep.equal(theGroup);
      expect(await after(call(method.deleteDeviceGroup, { groupId }))).to.deep.equal(theGroup);
    });

    it('have unique names, and only devices of their tenant', async () => {
      const group = await makeGroup('Cellar');
      expect(await codeOf(makeGroup('Cellar'))).to.equal('ALREADY_EXISTS');
      const theirs = await makeGroup('Cellar', 'other');
      const rename = { groupId: (await makeGroup()).groupId, name: 'Cellar', updateMask: { paths: ['name'] } };
      expect(await codeOf(call(method.updateDeviceGroup, rename))).to.equal('ALREADY_EXISTS');
      const foreign = (await make({}, 'other')).device.deviceId;
      for (const deviceIds of [[foreign], [newId()], ['x']]) {
        const error = await refusal(call(method.addDevicesToGroup, { groupId: group.groupId, deviceIds }));
        expect([error.code, error.message.includes('device_ids')]).to.deep.equal(['NOT_FOUND', true]);
      }
      expect(await codeOf(call(method.addDevicesToGroup, { groupId: group.groupId }))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(call(method.deleteDeviceGroup, { groupId: theirs.groupId }))).to.equal('NOT_FOUND');
      expect(await codeOf(call(method.getDeviceGroup, { groupId: 'x' }))).to.equal('NOT_FOUND');
      expect(await codeOf(makeGroup(''))).to.equal('INVALID_ARGUMENT');
    });
  });

  describe('the history of a device', () => {
    const kinds = Object.keys(DeviceEvent_Kind);
    const history = (deviceId: string, request: { pageSize?: number; pageToken?: string } = {}, tenantId = 'acme') =>
      call(method.getDeviceHistory, { deviceId, ...request }, tenantId);
    const texts = async (deviceId: string) =>
      (await history(deviceId)).events.map(({ kind, from, to }) => `${kinds[kind!]}: ${from} -> ${to}`);

    it('shows every change, latest first, and nothing else', async () => {
      const { device, apiKey } = await make({ profileId: pumps.profileId });
      const { deviceId } = device;
      expect(await texts(deviceId)).to.deep.equal([]);
      await update(deviceId, { name: 'another name', tags: { a: 'b' } }, ['name', 'tags']);
      await test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'fw', new Map([[deviceId, '1.0.0']])));
      await test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'fw', new Map([[deviceId, '1.0.0']])));
      await test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'sw', new Map([[deviceId, '7.1.0']])));
      await test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'fw', new Map([[deviceId, '2.0.0']])));
      devices.liveness.seen('acme', deviceId, clock.now(), 'telemetry');
      await devices.liveness.writeAll();
      await update(deviceId, { profileId: '' }, ['profile_id']);
      const rotated = await call(method.rotateDeviceCredentials, { deviceId, graceSeconds: 60 });
      const shown = (key: string) => `${key.slice(0, 12)}…${key.slice(-4)}`;
      expect(await texts(deviceId)).to.deep.equal([
        `credential: ${shown(apiKey)} -> ${shown(rotated.apiKey)}`,
        `profile: ${pumps.profileId} -> `,
        'status: offline -> online',
        'firmware: 1.0.0 -> 2.0.0',
        'software:  -> 7.1.0',
        'firmware:  -> 1.0.0',
      ]);
    });

    it('does not show a change that is rolled back', async () => {
      const { device } = await make();
      const failed = test.database.tenant('acme', async (tx) => {
        await setVersions(tx, 'acme', 'fw', new Map([[device.deviceId, '1.0.0']]));
        throw new Error('later in the transaction');
      });
      await failed.catch(() => undefined);
      expect(await texts(device.deviceId)).to.deep.equal([]);
    });

    it('is paged without gaps while changes arrive', async () => {
      const { device } = await make();
      const { deviceId } = device;
      const install = (version: number) =>
        test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'fw', new Map([[deviceId, `${version}.0.0`]])));
      for (let version = 1; version <= 7; version += 1) await install(version);
      const seen: string[] = [];
      let pageToken = '';
      do {
        const page = await history(deviceId, { pageSize: 2, pageToken });
        expect(page.events.length).to.be.at.most(2);
        seen.push(...page.events.map(({ to }) => to));
        pageToken = page.nextPageToken;
        if (seen.length === 2) await install(8);
      } while (pageToken !== '');
      expect(seen).to.deep.equal([7, 6, 5, 4, 3, 2, 1].map((version) => `${version}.0.0`));
      const other = await make();
      const { nextPageToken: foreign } = await history(deviceId, { pageSize: 2 });
      expect(await codeOf(history(other.device.deviceId, { pageToken: foreign }))).to.equal('INVALID_ARGUMENT');
      expect(await codeOf(history(deviceId, { pageSize: -1 }))).to.equal('INVALID_ARGUMENT');
    });

    it('is not found for a device that is unknown, deleted or of another tenant', async () => {
      const { device } = await make();
      expect(await codeOf(history(device.deviceId, {}, 'other'))).to.equal('NOT_FOUND');
      await call(method.deleteDevice, { deviceId: device.deviceId });
      expect(await codeOf(history(device.deviceId))).to.equal('NOT_FOUND');
      expect(await codeOf(history('nonsense'))).to.equal('NOT_FOUND');
    });

    it('is deleted when it is old, the status first, in small transactions', async () => {
      const { device } = await make();
      await test.database.system((tx) =>
        tx.query(
          `INSERT INTO device_history (tenant_id, device_id, time, kind, previous, current)
           SELECT 'acme', $1, now() - days * interval '1 day', kind, '', days::text
           FROM unnest(ARRAY[29, 31, 364, 366]) AS days, unnest(ARRAY['status', 'firmware']) AS kind
           ORDER BY days DESC`,
          [device.deviceId],
        ),
      );
      await sweepHistory(test.database, 365, new AbortController().signal, 2);
      expect(await texts(device.deviceId)).to.have.members([
        ...['status:  -> 29', 'firmware:  -> 29', 'firmware:  -> 31', 'firmware:  -> 364'],
      ]);
    });
  });
});

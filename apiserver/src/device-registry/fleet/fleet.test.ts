// Bulk changes, statistics and groups with a query, against a real database.
import { randomBytes } from 'node:crypto';
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import {
  ChangeDevicesRequest_Action as Action,
  Device_Status as Status,
  DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { ProfileSchema } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { expect } from 'chai';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { writeProfile } from '../../device-link/provisioning/profile-store.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { newId, nilId } from '../../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { countBytesRead } from '../../platform/testing/bytes-read.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { outcomeOf, refusal } from '../../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { addUpChanges } from '../devices/device-counts.ts';
import { setVersions } from '../devices/devices.ts';
import { createDeviceRegistry, type DeviceRegistryModule } from '../service.ts';
import { bulkHandler } from './bulk-handler.ts';

const { method } = DeviceRegistryService;
const valueOf = (value: unknown): MessageInitShape<typeof method.changeDevices.input>['value'] => {
  if (value === null) return { kind: { case: 'nullValue', value: 0 } };
  if (typeof value === 'string') return { kind: { case: 'stringValue', value } };
  return {
    kind: {
      case: 'structValue',
      value: {
        fields: Object.fromEntries(Object.entries(value as object).map(([key, item]) => [key, valueOf(item)!])),
      },
    },
  };
};

describe('fleets', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let devices: DeviceRegistryModule;
  const registry = new ServiceRegistry();
  const [pump, fan] = [newId(), newId()];
  let profileGeneration = 0;
  const setProfile = (profileId: string, defaultTags: Record<string, string>) => {
    const meta = create(ObjectMetaSchema, { tenantId: 'acme', namespace: 'kellet-acme', name: profileId });
    profileGeneration += 1;
    return test.database.tenant('acme', (tx) =>
      writeProfile(tx, profileId, meta, create(ProfileSchema, { type: `t${profileGeneration}`, defaultTags })),
    );
  };

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    await setProfile(pump, {});
    await setProfile(fan, {});
    const platform = testPlatform(test.database, new MovableClock());
    const membership = new RolloutMembership(platform.clock);
    const usage = { ofGroup: templatesOfGroup, customerHasUsers };
    devices = createDeviceRegistry(platform, createProfileReader(test.database), membership, usage);
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
      internalContext({ ...publicCaller, kind: 'kubernetes', tenantId }),
    );
  let made = 0;
  const make = async (fields: MessageInitShape<typeof method.createDevice.input> = {}, tenantId = 'acme') => {
    const { device } = await call(method.createDevice, { hardwareId: `h${(made += 1)}`, ...fields }, tenantId);
    return device!.deviceId;
  };
  const get = (deviceId: string) => call(method.getDevice, { deviceId });
  const membersOf = async (groupId: string) =>
    (await call(method.listDevices, { groupId, pageSize: 500 })).devices.map(({ deviceId }) => deviceId).sort();
  const statistics = async (request: { profileId?: string; groupId?: string } = {}) => {
    const found = await call(method.getDeviceStatistics, request);
    const { total, online, offline, firmwareVersions } = found;
    return { total, online, offline, versions: firmwareVersions.map(({ version, count }) => [version, count]) };
  };
  const toastBlocks = async (): Promise<number> => {
    await Promise.all(
      Array.from({ length: 10 }, () => test.database.system((tx) => tx.query('SELECT pg_stat_force_next_flush()'))),
    );
    await Promise.all(Array.from({ length: 10 }, () => test.database.system((tx) => tx.query('SELECT 1'))));
    const { rows } = await test.database.system((tx) =>
      tx.query<{ blocks: number }>(
        `SELECT (toast_blks_hit + toast_blks_read)::int4 AS blocks FROM pg_statio_user_tables WHERE relname = 'devices'`,
      ),
    );
    return rows[0]!.blocks;
  };
  const setStatus = (deviceId: string, status: string) =>
    test.database.system((tx) => tx.query(`UPDATE devices SET status = $2 WHERE device_id = $1`, [deviceId, status]));

  it('are counted by the versions that most have, however many there are', async () => {
    const group = await call(method.createDeviceGroup, { name: 'versions' });
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO device_counts (tenant_id, group_id, profile_id, status, firmware_version, devices)
         SELECT 'acme', $1, $2, CASE WHEN n % 3 = 0 THEN 'online' ELSE 'offline' END, 'v' || lpad(n::text, 4, '0'), 1 + n / 1200
         FROM generate_series(1, 1500) AS n`,
        [group.groupId, nilId],
      ),
    );
    const { total, online, offline, versions } = await statistics({ groupId: group.groupId });
    expect({ total, online, offline }).to.deep.equal({ total: 1801, online: 601, offline: 1200 });
    expect(versions).to.have.length(1000);
    expect([versions[0], versions[300], versions[301], versions[999]]).to.deep.equal([
      ['v1200', 2],
      ['v1500', 2],
      ['v0001', 1],
      ['v0699', 1],
    ]);
  });

  it('are in a group whose query has at most 8 KiB', async () => {
    const tag = Array.from({ length: 16 }, (_, n) => `k${n}=${'x'.repeat(600)}`);
    const refused = await refusal(call(method.createDeviceGroup, { name: 'large', query: { tag } }));
    expect(refused).to.include({ code: 'INVALID_ARGUMENT', message: 'query must have at most 8192 bytes as JSON' });
  });

  describe('changed in bulk', () => {
    const change = (tag: string, action: Action, value: unknown, expected: number | undefined, tenantId = 'acme') =>
      call(
        method.changeDevices,
        {
          filter: { tag: [tag] },
          action,
          ...(value === undefined ? {} : { value: valueOf(value) }),
          ...(expected === undefined ? {} : { expected }),
        },
        tenantId,
      );

    it('merge and remove tags, and count real changes', async () => {
      const ids = [await make({ tags: { b: '1', x: 'old' } }), await make({ tags: { b: '1', y: 'new' } })];
      const third = await make({ tags: { b: '2', x: 'old' } });
      const result = await change('b=1', Action.set_tags, { x: null, y: 'new' }, 2);
      expect({ matched: result.matched, changed: result.changed }).to.deep.equal({ matched: 2, changed: 1 });
      for (const id of ids) expect((await get(id)).tags).to.deep.equal({ b: '1', y: 'new' });
      expect((await get(third)).tags).to.deep.equal({ b: '2', x: 'old' });
    });

    it('are not read with their metadata, which may be large, nor are the children of those that are deleted', async () => {
      const metadata = { text: 'x'.repeat(15_000) };
      const ids = [await make({ tags: { large: '1' }, metadata }), await make({ tags: { large: '1' }, metadata })];
      const child = await make({ metadata });
      await test.database.tenant('acme', (tx) =>
        tx.query('UPDATE devices SET gateway_device_id = $2 WHERE device_id = $1', [child, ids[0]]),
      );
      const { database, bytes } = countBytesRead(test.database);
      const platform = testPlatform(database, new MovableClock());
      const usage = { ofGroup: templatesOfGroup, customerHasUsers };
      const counted = new ServiceRegistry();
      const membership = new RolloutMembership(platform.clock);
      createDeviceRegistry(platform, createProfileReader(database), membership, usage).register(counted);
      for (const [action, value] of [
        [Action.set_profile, valueOf(fan)],
        [Action.set_tags, valueOf({ more: '1' })],
        [Action.delete, undefined],
      ] as const) {
        const given = value === undefined ? {} : { value };
        const request = create(method.changeDevices.input, {
          filter: { tag: ['large=1'] },
          action,
          expected: 2,
          ...given,
        });
        const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: 'acme' });
        expect((await counted.unary(method.changeDevices, request, context)).changed).to.equal(2);
      }
      expect(bytes()).to.be.below(10_000);
      expect((await get(child)).gatewayDeviceId).to.equal('');
    });

    it('are deleted with few children of gateways at a time, each gateway with all of its own', async () => {
      const [gateways, each] = [24, 1000];
      await test.database.system(async (tx) => {
        await tx.query(`CREATE TABLE changed_at_once (transaction xid8 NOT NULL, devices int8 NOT NULL)`);
        await tx.query(
          `CREATE FUNCTION note_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
             'BEGIN INSERT INTO changed_at_once SELECT pg_current_xact_id(), count(*) FROM after; RETURN NULL; END'`,
        );
        await tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, tags)
           SELECT 'acme', gen_random_uuid(), 'gateway', 'gateway-' || n, '{"gateway":"1"}' FROM generate_series(1, $1::int4) n`,
          [gateways],
        );
        await tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, gateway_device_id, tags)
           SELECT tenant_id, gen_random_uuid(), 'child', hardware_id || '-' || n, device_id, '{"child":"1"}'
           FROM devices, generate_series(1, $1::int4) n WHERE tags ? 'gateway'`,
          [each],
        );
        await tx.query(
          `CREATE TRIGGER note_changed AFTER UPDATE ON devices REFERENCING NEW TABLE AS after
             FOR EACH STATEMENT EXECUTE FUNCTION note_changed()`,
        );
      });
      const numberOf = async (condition: string) => {
        const { rows } = await test.database.system((tx) =>
          tx.query<{ n: number }>(`SELECT count(*)::int4 AS n FROM devices c WHERE ${condition}`),
        );
        return rows[0]!.n;
      };
      const orphans = `gateway_device_id IN (SELECT device_id FROM devices WHERE deleted_at IS NOT NULL)`;
      try {
        // A process that ends after some of the transactions leaves the other gateways as they were, to be deleted by another call.
        const stopping = new AbortController();
        const { database } = test;
        let transactions = 0;
        const cut = Object.assign(Object.create(database) as typeof database, {
          tenant: async (...given: Parameters<typeof database.tenant>) => {
            const result = await database.tenant(...given);
            transactions += 1;
            // The first checks what the filter matches.
            if (transactions === 3) stopping.abort();
            return result;
          },
        });
        const partly = new ServiceRegistry();
        const platform = testPlatform(cut, new MovableClock());
        const usage = { ofGroup: templatesOfGroup, customerHasUsers };
        const membership = new RolloutMembership(platform.clock);
        createDeviceRegistry(platform, createProfileReader(cut), membership, usage).register(partly);
        const request = { filter: { tag: ['gateway=1'] }, action: Action.delete, expected: gateways };
        const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: 'acme' });
        const stopped = partly.unary(method.changeDevices, create(method.changeDevices.input, request), {
          ...context,
          signal: stopping.signal,
        });
        expect(await outcomeOf(stopped)).to.equal('CANCELLED');
        const left = await numberOf(`tags ? 'gateway' AND deleted_at IS NULL`);
        expect(left).to.be.within(1, gateways - 1);
        expect(await numberOf(orphans)).to.equal(0);
        expect(await numberOf(`tags ? 'child' AND gateway_device_id IS NOT NULL`)).to.equal(left * each);
        expect((await change('gateway=1', Action.delete, undefined, left)).changed).to.equal(left);
        expect(await numberOf(`tags ? 'child' AND gateway_device_id IS NULL AND deleted_at IS NULL`)).to.equal(
          gateways * each,
        );
        const { rows } = await test.database.system((tx) =>
          tx.query<{ most: number; all: number }>(
            `SELECT max(devices)::int4 AS most, sum(devices)::int4 AS all
             FROM (SELECT sum(devices) AS devices FROM changed_at_once GROUP BY transaction) AS t`,
          ),
        );
        expect(rows[0]!.most).to.be.within(each, 5500);
        expect(rows[0]!.all).to.equal(gateways * (each + 1));
      } finally {
        await test.database.system(async (tx) => {
          await tx.query('DROP TRIGGER note_changed ON devices');
          await tx.query('DROP FUNCTION note_changed');
          await tx.query('DROP TABLE changed_at_once');
        });
      }
      expect((await change('child=1', Action.delete, undefined, gateways * each)).changed).to.equal(gateways * each);
    });

    it('are changed by a few calls of a tenant at a time, and by those of others meanwhile', async () => {
      const id = await make({ tags: { turn: '1' } });
      await make({ tags: { turn: '1' } }, 'other');
      const { promise: held, resolve: release } = Promise.withResolvers<void>();
      const holding = test.database.tenant('acme', async (tx) => {
        await tx.query(`SELECT FROM devices WHERE device_id = $1 FOR UPDATE`, [id]);
        await held;
      });
      const waiting = async () => {
        const { rows } = await test.database.system((tx) =>
          tx.query<{ n: number }>(
            `SELECT count(*)::int4 AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`,
          ),
        );
        return rows[0]!.n;
      };
      const changes = ['a', 'b', 'c', 'd'].map((n) => change('turn=1', Action.set_tags, { [n]: n }, 1));
      await eventually(async () => (await waiting()) === 2);
      expect((await change('turn=1', Action.set_tags, { a: 'a' }, 1, 'other')).changed).to.equal(1);
      await new Promise((resolve) => setTimeout(resolve, 300));
      expect(await waiting()).to.equal(2);
      release();
      await holding;
      for (const one of await Promise.all(changes)) expect(one.changed).to.equal(1);
      expect((await get(id)).tags).to.deep.equal({ turn: '1', a: 'a', b: 'b', c: 'c', d: 'd' });
    });

    it('say that some are changed if a later one cannot be', async () => {
      const ids = await test.database.tenant('acme', async (tx) => {
        const { rows } = await tx.query<{ device_id: string }>(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, tags)
           SELECT 'acme', gen_random_uuid(), 'p', 'partial-' || n, '{"partial":"1"}' FROM generate_series(1, 600) n
           RETURNING device_id`,
        );
        return rows.map(({ device_id }) => device_id).sort();
      });
      const full = Object.fromEntries(Array.from({ length: 63 }, (_, n) => [`t${n}`, 'x']));
      const fill = (deviceId: string) =>
        call(method.updateDevice, { deviceId, tags: { ...full, partial: '1' }, updateMask: { paths: ['tags'] } });
      await fill(ids.at(-1)!);
      const failed = await refusal(change('partial=1', Action.set_tags, { more: 'x' }, 600));
      expect(failed.code).to.equal('CANCELLED');
      expect(failed.message).to.match(/^500 devices are changed; then device .* would have more than 64 tags$/);
      await fill(ids[0]!);
      const refused = await refusal(change('partial=1', Action.set_tags, { other: 'x' }, 600));
      expect(refused.code, 'nothing is changed').to.equal('FAILED_PRECONDITION');
      await change('partial=1', Action.delete, undefined, 600);
    });

    it('are left unchanged if their number is not the expected one', async () => {
      const id = await make({ tags: { exact: '1' } });
      for (const expected of [0, 2]) {
        expect(await outcomeOf(change('exact=1', Action.delete, undefined, expected))).to.equal('FAILED_PRECONDITION');
      }
      expect((await get(id)).tags).to.deep.equal({ exact: '1' });
      expect((await change('exact=none', Action.delete, undefined, 0)).matched).to.equal(0);
    });

    it('get another profile, with history and statistics as for single changes', async () => {
      const total = 1100;
      await Promise.all(Array.from({ length: 20 }, () => make({ tags: { move: '1' }, profileId: pump })));
      await test.database.tenant('acme', (tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id, tags)
           SELECT 'acme', gen_random_uuid(), 'm', 'move-' || n, $1, '{"move":"1"}' FROM generate_series(1, $2) n`,
          [pump, total - 20],
        ),
      );
      const before = await statistics({ profileId: fan });
      const result = await change('move=1', Action.set_profile, fan, total);
      expect(result.changed).to.equal(total);
      expect((await statistics({ profileId: fan })).total).to.equal(before.total + total);
      const [device] = (await call(method.listDevices, { tag: ['move=1'], pageSize: 1 })).devices;
      const { events } = await call(method.getDeviceHistory, { deviceId: device!.deviceId });
      expect(events.map(({ from, to }) => ({ from, to }))).to.deep.equal([{ from: pump, to: fan }]);
      expect((await change('move=1', Action.set_profile, fan, total)).changed).to.equal(0);
      expect((await change('move=1', Action.delete, undefined, total)).changed).to.equal(total);
      expect((await call(method.listDevices, { tag: ['move=1'] })).devices).to.deep.equal([]);
      expect((await statistics({ profileId: fan })).total).to.equal(before.total);
    });

    it('are added to a group', async () => {
      const { groupId } = await call(method.createDeviceGroup, { name: 'bulk' });
      const ids = [await make({ tags: { join: '1' } }), await make({ tags: { join: '1' } })].sort();
      await call(method.addDevicesToGroup, { groupId, deviceIds: [ids[0]!] });
      expect((await change('join=1', Action.add_to_group, groupId, 2)).changed).to.equal(1);
      expect(await membersOf(groupId)).to.deep.equal(ids);
      expect((await call(method.getDeviceGroup, { groupId })).deviceCount).to.equal(2);
    });

    it('are few enough in a day that what they leave is bounded, for each tenant', async () => {
      for (let n = 0; n < 2; n += 1) await make({ tags: { often: '1' } });
      const clock = new MovableClock();
      const parts = {
        ...{ database: test.database, clock, profiles: createProfileReader(test.database) },
        queryGroups: { follow: () => Promise.resolve(), devicesAtOnce: () => Promise.resolve(500) },
      } as unknown as Parameters<typeof bulkHandler>[0];
      const few = new ServiceRegistry();
      few.register(DeviceRegistryService, bulkHandler(parts, { burst: 5, perSecond: 0.1 }));
      const tag = (tenantId = 'acme', expected = 2) =>
        few.unary(
          method.changeDevices,
          create(method.changeDevices.input, {
            filter: { tag: ['often=1'] },
            ...{ action: Action.set_tags, value: valueOf({ seen: 'yes' }), expected },
          }),
          internalContext({ ...publicCaller, kind: 'kubernetes', tenantId }),
        );
      for (let n = 0; n < 2; n += 1) expect((await tag()).matched).to.equal(2);
      const refused = await refusal(tag());
      expect([refused.code, refused.retryAfterSeconds]).to.deep.equal(['RESOURCE_EXHAUSTED', 10]);
      expect((await tag('other', 0)).matched).to.equal(0);
      clock.advance(10_000);
      expect((await tag()).matched).to.equal(2);
    });

    it('are not those of another tenant', async () => {
      await make({ tags: { mine: '1' } });
      expect(await outcomeOf(change('mine=1', Action.delete, undefined, 1, 'other'))).to.equal('FAILED_PRECONDITION');
      expect(await outcomeOf(change('mine=1', Action.set_profile, pump, 0, 'other'))).to.equal('NOT_FOUND');
    });

    const refusals: [what: string, action: Action, value: unknown, expected: number | undefined, code: string][] = [
      ['no expected number', Action.delete, undefined, undefined, 'INVALID_ARGUMENT'],
      ['too many', Action.delete, undefined, 100_001, 'INVALID_ARGUMENT'],
      ['no action', Action.action_unspecified, undefined, 0, 'INVALID_ARGUMENT'],
      ['a value for a deletion', Action.delete, 'x', 0, 'INVALID_ARGUMENT'],
      ['tags that are not texts', Action.set_tags, { a: { b: 'c' } }, 0, 'INVALID_ARGUMENT'],
      ['no tags', Action.set_tags, undefined, 0, 'INVALID_ARGUMENT'],
      ['an unknown profile', Action.set_profile, newId(), 0, 'NOT_FOUND'],
      ['an unknown group', Action.add_to_group, newId(), 0, 'NOT_FOUND'],
    ];
    for (const [what, action, value, expected, code] of refusals) {
      it(`are refused with ${what}`, async () => {
        expect(await outcomeOf(change('refused=1', action, value, expected))).to.equal(code);
      });
    }
  });

  describe('counted', () => {
    it('by profile, group, status and version, before and after changes are added up', async () => {
      const { groupId } = await call(method.createDeviceGroup, { name: 'counted' });
      const before = await statistics();
      const ids = [await make({ profileId: pump, groupIds: [groupId] }), await make({ profileId: fan }), await make()];
      await test.database.tenant('acme', (tx) =>
        setVersions(
          tx,
          'acme',
          'fw',
          new Map([
            [ids[0]!, '1.0'],
            [ids[1]!, '1.0'],
          ]),
        ),
      );
      await setStatus(ids[0]!, 'online');
      for (const round of ['live', 'added up']) {
        if (round === 'added up') await test.database.system((tx) => addUpChanges(tx));
        const all = await statistics();
        expect([all.total, all.online], round).to.deep.equal([before.total + 3, before.online + 1]);
        expect(await statistics({ groupId }), round).to.deep.equal({
          ...{ total: 1, online: 1, offline: 0, versions: [['1.0', 1]] },
        });
        expect((await statistics({ groupId, profileId: fan })).total).to.equal(0);
      }
      await call(method.removeDeviceFromGroup, { groupId, deviceId: ids[0]! });
      expect((await statistics({ groupId })).total).to.equal(0);
      await call(method.deleteDevice, { deviceId: ids[1]! });
      expect((await statistics()).total).to.equal(before.total + 2);
      expect(await outcomeOf(call(method.getDeviceStatistics, { groupId: newId() }))).to.equal('NOT_FOUND');
      expect(await outcomeOf(call(method.getDeviceStatistics, { profileId: newId() }))).to.equal('NOT_FOUND');
      expect(await outcomeOf(call(method.getDeviceStatistics, { groupId }, 'other'))).to.equal('NOT_FOUND');
    });

    it('exactly, whatever happens at the same time', async () => {
      const { groupId } = await call(method.createDeviceGroup, { name: 'busy' });
      const ids = await Promise.all(Array.from({ length: 12 }, () => make({ profileId: pump })));
      await Promise.all(
        ids
          .flatMap((id, index) => [
            call(method.addDevicesToGroup, { groupId, deviceIds: [id] }),
            setStatus(id, 'online'),
            test.database.tenant('acme', (tx) => setVersions(tx, 'acme', 'fw', new Map([[id, `v${index % 3}`]]))),
            call(method.updateDevice, { deviceId: id, profileId: fan, updateMask: { paths: ['profile_id'] } }),
            index % 4 === 0 ? outcomeOf(call(method.deleteDevice, { deviceId: id })) : Promise.resolve(),
            test.database.system((tx) => addUpChanges(tx, 3)),
          ])
          .map((work) => Promise.resolve(work).catch(() => undefined)),
      );
      const { rows } = await test.database.system((tx) =>
        tx.query<{ group_id: string | null; total: number; online: number }>(
          `SELECT m.group_id, count(*)::int4 AS total, count(*) FILTER (WHERE status = 'online')::int4 AS online
           FROM devices d LEFT JOIN device_group_members m ON m.device_id = d.device_id AND m.group_id = $1
           WHERE d.tenant_id = 'acme' AND deleted_at IS NULL GROUP BY m.group_id`,
          [groupId],
        ),
      );
      const inGroup = rows.find((row) => row.group_id !== null);
      const counted = await statistics({ groupId });
      expect([counted.total, counted.online]).to.deep.equal([inGroup?.total ?? 0, inGroup?.online ?? 0]);
      const all = await statistics();
      expect(all.total).to.equal(rows.reduce((sum, { total }) => sum + total, 0));
      expect(all.online).to.equal(rows.reduce((sum, { online }) => sum + online, 0));
    });
  });

  describe('grouped by a query', () => {
    const group = async (name: string, query: MessageInitShape<typeof method.createDeviceGroup.input>['query']) =>
      call(method.createDeviceGroup, { name, query: query! });

    it('are those that match, from the beginning and after each change', async () => {
      const first = await make({ tags: { site: 'north' } });
      const created = await group('north', { tag: ['site=north'] });
      const { groupId } = created;
      expect([created.deviceCount, created.query?.tag]).to.deep.equal([1, ['site=north']]);
      const second = await make({ tags: { site: 'north' } });
      expect(await membersOf(groupId)).to.deep.equal([first, second].sort());
      expect((await get(second)).groupIds).to.deep.equal([groupId]);
      await call(method.updateDevice, { deviceId: first, tags: { site: 'south' }, updateMask: { paths: ['tags'] } });
      expect(await membersOf(groupId)).to.deep.equal([second]);
      await call(method.changeDevices, {
        ...{
          filter: { tag: ['site=south'] },
          action: Action.set_tags,
          value: valueOf({ site: 'north' })!,
          expected: 1,
        },
      });
      expect(await membersOf(groupId)).to.deep.equal([first, second].sort());
      await call(method.deleteDevice, { deviceId: second });
      expect(await membersOf(groupId)).to.deep.equal([first]);
      expect((await statistics({ groupId })).total).to.equal(1);
    });

    it('are not joined or left by a change of a user who is limited to some devices', async () => {
      const reached = await group('reached', { tag: ['reach=yes'] });
      const { groupId } = await group('valves', { tag: ['kind=valve'] });
      const deviceId = await make({ tags: { reach: 'yes' } });
      const scopes = ['devices:read', 'devices:write'];
      const limited = { limitedGrants: [{ scopes, deviceGroupIds: [reached.groupId] }] };
      const ofCustomer = { customerId: newId(), scopes: new Set(scopes) };
      for (const caller of [limited, ofCustomer]) {
        const change = (tags: Record<string, string>) =>
          registry.unary(
            method.updateDevice,
            create(method.updateDevice.input, { deviceId, tags, updateMask: { paths: ['tags'] } }),
            internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: 'acme', ...caller }),
          );
        expect(await outcomeOf(change({ reach: 'yes', kind: 'valve' })), 'joined').to.equal('PERMISSION_DENIED');
        expect(await outcomeOf(change({})), 'left').to.equal('PERMISSION_DENIED');
        expect((await get(deviceId)).tags).not.to.have.property('kind');
        expect(await outcomeOf(change({ reach: 'yes', color: 'red' })), 'neither').to.equal('OK');
      }
      expect(await membersOf(groupId)).to.deep.equal([]);
      expect(await membersOf(reached.groupId)).to.deep.equal([deviceId]);
    });

    it('have their tags unpacked once, however many tags a query has', async () => {
      const tags = Object.fromEntries(Array.from({ length: 16 }, (_, n) => [`u${n}`, '1']));
      const large = Object.fromEntries(
        Array.from({ length: 12 }, (_, n) => [`l${n}`, randomBytes(500).toString('hex')]),
      );
      await make({ tags: { ...tags, ...large } });
      const blocks = async (count: number): Promise<number> => {
        const tag = Object.keys(tags).map((key) => `${key}=1`);
        const before = await toastBlocks();
        expect((await call(method.listDevices, { tag: tag.slice(0, count), pageSize: 1 })).devices).to.have.length(1);
        return (await toastBlocks()) - before;
      };
      // Other work, such as a vacuum, counts too.
      const least = async (count: number) => Math.min(await blocks(count), await blocks(count), await blocks(count));
      expect(await least(16)).to.be.lessThan(4 * (await least(1)));
    });

    it('are compared few at a time with many queries, and all in the end', async () => {
      const tenantId = 'many-queries';
      await insertTenant(test.database, tenantId);
      const tag = ['a=1', 'b=2'];
      for (let n = 0; n < 100; n += 1)
        await call(method.createDeviceGroup, { name: `g${n}`, query: { tag } }, tenantId);
      const ids = await test.database.tenant(tenantId, async (tx) => {
        const { rows } = await tx.query<{ device_id: string }>(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, tags)
           SELECT $1, gen_random_uuid(), 'm', 'many-' || n, '{"a":"1"}' FROM generate_series(1, 120) n RETURNING device_id`,
          [tenantId],
        );
        return rows.map(({ device_id }) => device_id);
      });
      await test.database.system(async (tx) => {
        await tx.query('CREATE TABLE compared (transaction xid8 NOT NULL, device_id uuid NOT NULL)');
        await tx.query(`CREATE FUNCTION note_compared() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
          'BEGIN INSERT INTO compared SELECT pg_current_xact_id(), device_id FROM removed; RETURN NULL; END'`);
        await tx.query(`CREATE TRIGGER note_compared AFTER DELETE ON device_group_checks REFERENCING OLD TABLE AS removed
          FOR EACH STATEMENT EXECUTE FUNCTION note_compared()`);
      });
      try {
        const { groupId } = await call(method.createDeviceGroup, { name: 'by hand' }, tenantId);
        await call(
          method.changeDevices,
          { action: Action.set_tags, value: valueOf({ b: '2' })!, expected: 120 },
          tenantId,
        );
        await call(method.addDevicesToGroup, { groupId, deviceIds: ids }, tenantId);
        // In the background.
        await test.database.system((tx) =>
          tx.query(`UPDATE devices SET tags = '{"a":"1","b":"2","c":"3"}' WHERE tenant_id = $1`, [tenantId]),
        );
        const rows = async (text: string) => (await test.database.system((tx) => tx.query<{ n: number }>(text))).rows;
        await eventually(async () => (await rows('SELECT 1 AS n FROM device_group_checks')).length === 0, 20_000);
        const [most] = await rows(
          'SELECT count(DISTINCT device_id)::int4 AS n FROM compared GROUP BY transaction ORDER BY 1 DESC LIMIT 1',
        );
        expect(most!.n).to.be.within(1, 50);
        const [members] = await rows(
          `SELECT count(*)::int4 AS n FROM device_group_members WHERE tenant_id = '${tenantId}'`,
        );
        expect(members!.n).to.equal(101 * 120);
      } finally {
        await test.database.system(async (tx) => {
          await tx.query('DROP TRIGGER note_compared ON device_group_checks');
          await tx.query('DROP FUNCTION note_compared');
          await tx.query('DROP TABLE compared');
        });
      }
    });

    it('follow a changed query, and a fleet larger than one step', async () => {
      await test.database.tenant('acme', (tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, tags)
           SELECT 'acme', gen_random_uuid(), 'large', 'large-' || n, jsonb_build_object('half', (n % 2)::text)
           FROM generate_series(1, 1400) n`,
        ),
      );
      const { groupId, deviceCount } = await group('large', { q: 'large', tag: ['half=0'] });
      expect(deviceCount).to.equal(700);
      const changed = await call(method.updateDeviceGroup, {
        ...{ groupId, query: { q: 'large-1' }, updateMask: { paths: ['query'] } },
      });
      expect(changed.deviceCount).to.equal(1 + 10 + 100 + 401);
    });

    it('follow status, inherited tags and another group in the background', async () => {
      const device = await make({ profileId: pump });
      const { groupId: hand } = await call(method.createDeviceGroup, { name: 'by hand' });
      const online = await group('online', { status: Status.online, profileId: pump });
      const inherited = await group('inherited', { tag: ['kind=pump'] });
      const nested = await group('nested', { groupId: hand });
      const inGroup = (groupId: string, is: boolean) =>
        eventually(async () => (await membersOf(groupId)).includes(device) === is, 10_000);
      await setStatus(device, 'online');
      await setProfile(pump, { kind: 'pump' });
      await call(method.addDevicesToGroup, { groupId: hand, deviceIds: [device] });
      expect(await membersOf(nested.groupId)).to.deep.equal([device]);
      await Promise.all([inGroup(online.groupId, true), inGroup(inherited.groupId, true)]);
      await setStatus(device, 'offline');
      await setProfile(pump, {});
      await call(method.removeDeviceFromGroup, { groupId: hand, deviceId: device });
      expect(await membersOf(nested.groupId)).to.deep.equal([]);
      await Promise.all([inGroup(online.groupId, false), inGroup(inherited.groupId, false)]);
      expect(await outcomeOf(call(method.deleteDeviceGroup, { groupId: hand }))).to.equal('FAILED_PRECONDITION');
      await call(method.deleteDeviceGroup, { groupId: nested.groupId });
      expect(await outcomeOf(call(method.deleteDeviceGroup, { groupId: hand }))).to.equal('OK');
    });

    it('cannot be added or removed by hand', async () => {
      const device = await make({ tags: { hand: '1' } });
      const { groupId } = await group('no hands', { tag: ['hand=1'] });
      const other = await make();
      const { groupId: plain } = await call(method.createDeviceGroup, { name: 'plain' });
      const attempts = [
        () => call(method.addDevicesToGroup, { groupId, deviceIds: [other] }),
        () => call(method.removeDeviceFromGroup, { groupId, deviceId: device }),
        () => call(method.updateDevice, { deviceId: other, groupIds: [groupId], updateMask: { paths: ['group_ids'] } }),
        () => call(method.createDevice, { hardwareId: 'by-hand', groupIds: [groupId] }),
        () => call(method.changeDevices, { action: Action.add_to_group, value: valueOf(groupId)!, expected: 0 }),
        () => call(method.updateDeviceGroup, { groupId: plain, query: {}, updateMask: { paths: ['query'] } }),
        () => call(method.updateDeviceGroup, { groupId, updateMask: { paths: ['query'] } }),
        () => call(method.createDeviceGroup, { name: 'nested twice', query: { groupId } }),
      ];
      for (const attempt of attempts) expect(await outcomeOf(attempt())).to.equal('FAILED_PRECONDITION');
      // What a device has may be sent back, with changes of its other groups.
      const groupIds = [groupId, plain];
      await call(method.updateDevice, { deviceId: device, groupIds, updateMask: { paths: ['group_ids'] } });
      expect((await get(device)).groupIds).to.have.members(groupIds);
      await call(method.updateDevice, { deviceId: device, groupIds: [], updateMask: { paths: ['group_ids'] } });
      expect((await get(device)).groupIds).to.deep.equal([groupId]);
    });

    it('are checked', async () => {
      for (const [query, code] of [
        [{ profileId: newId() }, 'NOT_FOUND'],
        [{ groupId: newId() }, 'NOT_FOUND'],
        [{ customerId: newId() }, 'NOT_FOUND'],
        [{ tag: ['no value'] }, 'INVALID_ARGUMENT'],
      ] as const) {
        expect(
          await outcomeOf(
            call(method.createDeviceGroup, {
              name: `bad ${code}`,
              query: { ...query, tag: [...('tag' in query ? query.tag : [])] },
            }),
          ),
        ).to.equal(code);
      }
    });
  });

  describe('searched', () => {
    it('by part of a name or hardware id, ignoring case', async () => {
      const id = await make({ name: 'Größe 100%_x', hardwareId: 'SEARCH-me-1' });
      for (const q of ['GRÖSSE'.replace('SS', 'ß'), '0%_X', 'search-ME', 'me-1']) {
        expect(
          (await call(method.listDevices, { q })).devices.map(({ deviceId }) => deviceId),
          q,
        ).to.include(id);
      }
      expect((await call(method.listDevices, { q: '0%%x' })).devices).to.deep.equal([]);
      expect((await call(method.listDevices, { q: 'search-me' }, 'other')).devices).to.deep.equal([]);
      await test.database.tenant('acme', (tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT 'acme', gen_random_uuid(), 'searched', 'searched-' || n FROM generate_series(1, 1400) n`,
        ),
      );
      const seen: string[] = [];
      for (let pageToken = ''; ;) {
        const page = await call(method.listDevices, { q: 'searched-1', pageSize: 100, pageToken });
        seen.push(...page.devices.map(({ deviceId }) => deviceId));
        pageToken = page.nextPageToken;
        if (pageToken === '') break;
      }
      expect([seen.length, new Set(seen).size]).to.deep.equal([512, 512]);
    });
  });
});

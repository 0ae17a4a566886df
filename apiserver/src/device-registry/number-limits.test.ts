// How many of what a tenant may have, against a real database and with concurrent calls.
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { ChangeDevicesRequest_Action, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { customerHasUsers } from '../auth/accounts/account-store.ts';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { RolloutMembership } from '../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../device-link/provisioning/template-store.ts';
import { newId, nilId } from '../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { outcomeOf, refusal } from '../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { alarmLimit, deleteOldAlarms } from './alarms/alarm-store.ts';
import { assetLimit } from './entities/assets.ts';
import { customerLimit } from './entities/customers.ts';
import { viewLimit } from './entities/views.ts';
import { groupLimit } from './groups/group-store.ts';
import { createDeviceRegistry } from './service.ts';

const { method } = DeviceRegistryService;

describe('the number of rows of a tenant', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let deviceId: string;
  const registry = new ServiceRegistry();

  before(async () => {
    test = await createTestDatabase();
    const platform = testPlatform(test.database, new MovableClock());
    createDeviceRegistry(platform, createProfileReader(test.database), new RolloutMembership(platform.clock), {
      ofGroup: templatesOfGroup,
      customerHasUsers,
    }).register(registry);
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    ({ deviceId } = (await call(method.createDevice, { hardwareId: newId() })).device!);
  });
  after(() => test.drop());

  const call = <M extends (typeof method)[keyof typeof method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = 'acme',
  ) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext({ ...publicCaller, kind: 'kubernetes', tenantId, scopes: new Set(['telemetry:read']) }),
    );
  const query = async <Row extends Record<string, unknown>>(text: string, values: readonly unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Row>(text, values))).rows;
  /** Returns the number that is kept, and the actual one. */
  const numbers = async (table: string): Promise<[kept: number, actual: number]> => {
    const [row] = await query<{ kept: number; actual: number }>(
      `SELECT kept_sum('acme', $1, '${nilId}')::int4 AS kept,
         (SELECT count(*)::int4 FROM ${table} WHERE tenant_id = 'acme') AS actual`,
      [table],
    );
    return [row!.kept, row!.actual];
  };

  const kinds = [
    {
      ...{ table: 'customers', limit: customerLimit, maximum: 10_000 },
      make: (tenant?: string) => call(method.createCustomer, { name: 'c' }, tenant),
      more: `INSERT INTO customers (tenant_id, customer_id, name) SELECT 'acme', gen_random_uuid(), 'c'`,
    },
    {
      ...{ table: 'assets', limit: assetLimit, maximum: 100_000 },
      make: (tenant?: string) => call(method.createAsset, { name: 'a' }, tenant),
      more: `INSERT INTO assets (tenant_id, asset_id, name) SELECT 'acme', gen_random_uuid(), 'a'`,
    },
    {
      ...{ table: 'entity_views', limit: viewLimit, maximum: 100_000 },
      make: async (tenant?: string) => {
        const of = tenant === undefined ? deviceId : (await makeDevice(tenant)).deviceId;
        return call(method.createEntityView, { name: 'v', entity: { case: 'deviceId', value: of } }, tenant);
      },
      more: `INSERT INTO entity_views (tenant_id, entity_view_id, name, device_id) SELECT 'acme', gen_random_uuid(), 'v', $1`,
    },
    {
      ...{ table: 'device_groups', limit: groupLimit, maximum: 10_000 },
      make: (tenant?: string) => call(method.createDeviceGroup, { name: newId() }, tenant),
      more: `INSERT INTO device_groups (tenant_id, group_id, name) SELECT 'acme', gen_random_uuid(), n::text`,
    },
    {
      ...{ table: 'alarms', limit: alarmLimit, maximum: 1_000_000 },
      make: async (tenant?: string) => {
        const of = tenant === undefined ? deviceId : (await makeDevice(tenant)).deviceId;
        return call(method.createAlarm, { deviceId: of, type: newId() }, tenant);
      },
      // A million rows would take half a minute.
      more: `UPDATE kept_sums SET amount = amount + $1 WHERE tenant_id = 'acme' AND kind = 'alarms'
        AND part = (SELECT min(part) FROM kept_sums WHERE tenant_id = 'acme' AND kind = 'alarms')`,
    },
  ] as const;
  const makeDevice = async (tenant: string) =>
    (await call(method.createDevice, { hardwareId: newId() }, tenant)).device!;

  describe('has a maximum, whatever is created at a time, and tenants do not share it', () => {
    for (const { table, limit, maximum, make, more } of kinds) {
      it(table, async () => {
        await make();
        const added = maximum - 1 - 3;
        if (table === 'alarms') await query(more, [added]);
        else await query(`${more} FROM generate_series(1, ${added}) AS n`, more.includes('$1') ? [deviceId] : []);
        const outcomes = await Promise.all(Array.from({ length: 12 }, () => outcomeOf(make())));
        expect(outcomes.filter((outcome) => outcome === 'OK')).to.have.length(3);
        expect(outcomes.filter((outcome) => outcome === 'RESOURCE_EXHAUSTED')).to.have.length(9);
        expect((await refusal(make())).message).to.equal(`a tenant has at most ${maximum} ${limit.what}`);
        await make('other');
        const [kept, actual] = await numbers(table);
        expect(kept).to.equal(maximum);
        expect(actual).to.equal(table === 'alarms' ? maximum - added : maximum);

        // A row that is deleted makes room for one.
        await query(`DELETE FROM ${table} WHERE ctid = (SELECT ctid FROM ${table} WHERE tenant_id = 'acme' LIMIT 1)`);
        expect(await Promise.all([outcomeOf(make()), outcomeOf(make())])).to.have.members(['OK', 'RESOURCE_EXHAUSTED']);
      });
    }
  });

  it('of groups of a device has a maximum, however it is added to them', async () => {
    const groups = await query<{ group_id: string }>(
      `INSERT INTO device_groups (tenant_id, group_id, name) SELECT 'other', gen_random_uuid(), 'many-' || n
       FROM generate_series(1, 102) AS n RETURNING group_id`,
    );
    const groupIds = groups.map((row) => row.group_id);
    const create = (count: number) =>
      call(
        method.createDevice,
        { hardwareId: newId(), groupIds: groupIds.slice(0, count), tags: { many: '1' } },
        'other',
      );
    const message = 'a device is in at most 100 device groups, besides those with a query';
    expect(await refusal(create(101))).to.deep.include({ code: 'RESOURCE_EXHAUSTED', message });
    const of = (await create(99)).device!.deviceId;
    const add = (groupId: string) => call(method.addDevicesToGroup, { groupId, deviceIds: [of] }, 'other');
    const outcomes = await Promise.all(groupIds.slice(99).map((groupId) => outcomeOf(add(groupId))));
    expect(outcomes.sort()).to.deep.equal(['OK', 'RESOURCE_EXHAUSTED', 'RESOURCE_EXHAUSTED']);
    // Those that it has may be sent back, and replaced.
    const { groupIds: held } = await call(method.getDevice, { deviceId: of }, 'other');
    const set = (ids: readonly string[]) =>
      outcomeOf(
        call(method.updateDevice, { deviceId: of, groupIds: [...ids], updateMask: { paths: ['group_ids'] } }, 'other'),
      );
    expect(await set(held)).to.equal('OK');
    expect(await set(groupIds.slice(1, 101))).to.equal('OK');
    expect(await set(groupIds.slice(0, 101))).to.equal('RESOURCE_EXHAUSTED');
    const byQuery = await call(method.createDeviceGroup, { name: newId(), query: { tag: ['many=1'] } }, 'other');
    expect(byQuery.deviceCount).to.equal(1);
    const bulk = call(
      method.changeDevices,
      {
        filter: { tag: ['many=1'] },
        action: ChangeDevicesRequest_Action.add_to_group,
        value: { kind: { case: 'stringValue', value: groupIds[0]! } },
        expected: 1,
      },
      'other',
    );
    expect(await refusal(bulk)).to.deep.include({ code: 'RESOURCE_EXHAUSTED', message: `device ${of}: ${message}` });
    expect((await call(method.getDevice, { deviceId: of }, 'other')).groupIds).to.have.length(101);
  });

  it('of bytes of the tags of a device has a maximum, however they are set', async () => {
    const tags = (count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, n) => [`large${n}`, 'x'.repeat(1000)]));
    const message = 'tags must have at most 16384 bytes together';
    const create = (count: number) => call(method.createDevice, { hardwareId: newId(), tags: tags(count) }, 'other');
    expect(await refusal(create(17))).to.deep.include({ code: 'INVALID_ARGUMENT', message });
    const of = (await create(16)).device!.deviceId;
    const update = { deviceId: of, tags: tags(17), updateMask: { paths: ['tags'] } };
    expect(await refusal(call(method.updateDevice, update, 'other'))).to.deep.include({
      code: 'INVALID_ARGUMENT',
      message,
    });
    const bulk = {
      filter: { tag: [`large0=${'x'.repeat(1000)}`] },
      action: ChangeDevicesRequest_Action.set_tags,
      value: {
        kind: {
          case: 'structValue' as const,
          value: { fields: { more: { kind: { case: 'stringValue' as const, value: 'x'.repeat(1000) } } } },
        },
      },
      expected: 1,
    };
    expect(await refusal(call(method.changeDevices, bulk, 'other'))).to.deep.include({
      ...{ code: 'FAILED_PRECONDITION', message: `the tags of device ${of} would have more than 16384 bytes` },
    });
  });

  it('of alarms is reduced by deleting the oldest cleared ones, whoever has raised them', async () => {
    await insertTenant(test.database, 'old');
    const device = (await makeDevice('old')).deviceId;
    const raise = (type: string) => call(method.createAlarm, { deviceId: device, type }, 'old');
    for (const type of ['open', 'a', 'b', 'c']) {
      const { alarmId } = await raise(type);
      if (type !== 'open') await call(method.clearAlarm, { alarmId }, 'old');
    }
    await raise('again');
    const types = async () =>
      (await query<{ type: string }>(`SELECT type FROM alarms WHERE tenant_id = 'old' ORDER BY alarm_id`)).map(
        ({ type }) => type,
      );
    const sweep = (kept: number, limit: number) => test.database.system((tx) => deleteOldAlarms(tx, kept, limit));
    // That of the other tenant, which has more, is another number.
    await query(`DELETE FROM kept_sums WHERE tenant_id <> 'old'`);
    expect(await sweep(5, 10)).to.equal(0);
    expect(await sweep(3, 1)).to.equal(1);
    expect(await types()).to.deep.equal(['open', 'b', 'c', 'again']);
    expect(await sweep(3, 10)).to.equal(1);
    expect(await sweep(1, 10)).to.equal(1);
    expect(await types()).to.deep.equal(['open', 'again']);
    expect(await sweep(1, 10)).to.equal(0);
  });
});

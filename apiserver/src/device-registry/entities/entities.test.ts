import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { customerHasUsers, insertUser } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { newId } from '../../platform/ids.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../../platform/rpc.ts';
import { refusal } from '../../platform/testing/refusals.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createDeviceRegistry, type DeviceRegistryModule } from '../service.ts';
import { maximumLevels } from './asset-placement.ts';
import { insertAsset, lockTrees } from './assets.ts';

const { method } = DeviceRegistryService;

describe('customers, assets and entity views', () => {
  let test: TestDatabase;
  let module: DeviceRegistryModule;
  const registry = new ServiceRegistry();

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    const platform = testPlatform(test.database, new MovableClock());
    module = createDeviceRegistry(platform, createProfileReader(test.database), new RolloutMembership(platform.clock), {
      ofGroup: templatesOfGroup,
      customerHasUsers,
    });
    module.register(registry);
    await module.start?.();
  });
  after(async () => {
    await module.stop?.();
    await test.drop();
  });

  const call = <M extends (typeof method)[keyof typeof method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    { tenantId = 'acme', customerId = '', scopes = ['telemetry:read'] } = {},
  ) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext({ ...publicCaller, kind: 'kubernetes', tenantId, customerId, scopes: new Set(scopes) }),
    );
  const textOfRefusal = async (promise: Promise<unknown>): Promise<string> => {
    const { code, message } = await refusal(promise);
    return `${code} ${message}`;
  };
  const makeCustomer = async (tenantId = 'acme') =>
    (await call(method.createCustomer, { name: 'Harbour' }, { tenantId })).customerId;
  const makeDevice = async (request: MessageInitShape<typeof method.createDevice.input> = {}, tenantId = 'acme') =>
    (await call(method.createDevice, { hardwareId: newId(), ...request }, { tenantId })).device!;
  const makeAsset = async (request: MessageInitShape<typeof method.createAsset.input> = {}, tenantId = 'acme') =>
    (await call(method.createAsset, { name: 'Building', ...request }, { tenantId })).assetId;
  const move = (assetId: string, parentAssetId: string) =>
    call(method.updateAsset, { assetId, parentAssetId, updateMask: { paths: ['parent_asset_id'] } });
  const assign = (deviceId: string, customerId: string) =>
    call(method.updateDevice, { deviceId, customerId, updateMask: { paths: ['customer_id'] } });
  const makeView = (request: MessageInitShape<typeof method.createEntityView.input>, tenantId = 'acme') =>
    call(method.createEntityView, { name: 'View', ...request }, { tenantId });
  const heights = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ asset_id: string; height: number }>('SELECT asset_id, height FROM assets'),
    );
    return new Map(rows.map((row) => [row.asset_id, row.height]));
  };
  /** Every page of a list, with pages of this size. */
  const walk = async <T>(page: (pageToken: string) => Promise<{ items: T[]; nextPageToken: string }>): Promise<T[]> => {
    const all: T[] = [];
    for (let token = ''; ;) {
      const { items, nextPageToken } = await page(token);
      all.push(...items);
      if (nextPageToken === '') return all;
      token = nextPageToken;
    }
  };

  describe('customers', () => {
    it('are created, changed, listed in pages and deleted', async () => {
      const made = await call(method.createCustomer, { name: 'Port', contact: 'port@example.test' });
      expect(made).to.deep.include({ name: 'Port', contact: 'port@example.test' });
      const { customerId } = made;
      const changed = await call(method.updateCustomer, {
        customerId,
        contact: '',
        updateMask: { paths: ['contact'] },
      });
      expect(changed).to.deep.include({ name: 'Port', contact: '' });
      expect(await call(method.getCustomer, { customerId })).to.deep.equal(changed);
      await makeCustomer();
      await makeCustomer('other');
      const listed = await walk(async (pageToken) => {
        const { customers, nextPageToken } = await call(method.listCustomers, { pageSize: 1, pageToken });
        return { items: customers, nextPageToken };
      });
      expect(listed.filter((customer) => customer.customerId === customerId)).to.deep.equal([changed]);
      expect(listed.length).to.be.greaterThan(1);
      await call(method.deleteCustomer, { customerId });
      expect(await textOfRefusal(call(method.getCustomer, { customerId }))).to.equal('NOT_FOUND customer not found');
    });

    it('are refused without a name, with one that is too long, or with NUL', async () => {
      for (const [request, want] of [
        [{ name: '' }, 'name is required'],
        [{ name: 'x'.repeat(257) }, 'name must have at most 256 characters'],
        [{ name: 'a\0' }, 'name must not contain NUL'],
        [{ name: 'a', contact: 'x'.repeat(4097) }, 'contact must have at most 4096 characters'],
      ] as const) {
        expect(await textOfRefusal(call(method.createCustomer, request))).to.equal(`INVALID_ARGUMENT ${want}`);
      }
    });

    it('are not deleted while something belongs to them', async () => {
      const customerId = await makeCustomer();
      const remove = () => call(method.deleteCustomer, { customerId });
      const device = await makeDevice({ customerId });
      expect(await textOfRefusal(remove())).to.equal('FAILED_PRECONDITION the customer still has devices');
      await call(method.deleteDevice, { deviceId: device.deviceId });
      const assetId = await makeAsset({ customerId });
      expect(await textOfRefusal(remove())).to.equal('FAILED_PRECONDITION the customer still has assets');
      const view = await makeView({ entity: { case: 'assetId', value: assetId }, customerId });
      await call(method.updateAsset, { assetId, customerId: '', updateMask: { paths: ['customer_id'] } });
      expect(await textOfRefusal(remove())).to.equal('FAILED_PRECONDITION the customer still has entity views');
      await call(method.deleteEntityView, { entityViewId: view.entityViewId });
      const user = {
        tenantId: 'acme',
        email: `${newId()}@acme.test`,
        name: '',
        role: 'viewer',
        disabled: false,
      } as const;
      await test.database.tenant('acme', (tx) =>
        insertUser(tx, { ...user, userId: newId(), passwordHash: 'none', customerId }),
      );
      expect(await textOfRefusal(remove())).to.equal('FAILED_PRECONDITION the customer still has users');
      await test.database.system((tx) => tx.query('DELETE FROM users WHERE customer_id = $1', [customerId]));
      await remove();
    });

    it('keep a device that is assigned while they are deleted out of an absent customer', async () => {
      const customerId = await makeCustomer();
      const device = await makeDevice();
      const [removed, assigned] = await Promise.allSettled([
        call(method.deleteCustomer, { customerId }),
        assign(device.deviceId, customerId),
      ]);
      expect([removed.status, assigned.status].sort()).to.deep.equal(['fulfilled', 'rejected']);
      const { customerId: now } = await call(method.getDevice, { deviceId: device.deviceId });
      expect(now).to.equal(assigned.status === 'fulfilled' ? customerId : '');
    });

    it('of another tenant, or unknown ones, are not found wherever they are named', async () => {
      const device = await makeDevice();
      for (const customerId of [await makeCustomer('other'), newId(), 'nonsense']) {
        const want = 'NOT_FOUND customer_id not found';
        expect(await textOfRefusal(call(method.getCustomer, { customerId }))).to.equal('NOT_FOUND customer not found');
        expect(await textOfRefusal(makeDevice({ customerId }))).to.equal(want);
        expect(await textOfRefusal(assign(device.deviceId, customerId))).to.equal(want);
        expect(await textOfRefusal(makeAsset({ customerId }))).to.equal(want);
        expect(
          await textOfRefusal(makeView({ entity: { case: 'deviceId', value: device.deviceId }, customerId })),
        ).to.equal(want);
        for (const list of [method.listDevices, method.listAssets, method.listEntityViews] as const) {
          expect(await textOfRefusal(call(list, { customerId }))).to.equal(want);
        }
      }
    });
  });

  describe('assets', () => {
    it('are created, changed, listed by parent and customer, and deleted', async () => {
      const customerId = await makeCustomer();
      const site = await makeAsset({ name: 'Site', type: 'site', customerId, tags: { region: 'north' } });
      const hall = await makeAsset({ name: 'Hall', parentAssetId: site });
      const line = await makeAsset({ name: 'Line', parentAssetId: hall.toUpperCase() });
      expect(await call(method.getAsset, { assetId: site })).to.deep.include({
        ...{ name: 'Site', type: 'site', parentAssetId: '', customerId, tags: { region: 'north' } },
      });
      const list = async (request: MessageInitShape<typeof method.listAssets.input>) =>
        (await call(method.listAssets, request)).assets.map((asset) => asset.assetId);
      expect(await list({ parentAssetId: site })).to.deep.equal([hall]);
      expect(await list({ parentAssetId: hall })).to.deep.equal([line]);
      expect(await list({ customerId })).to.deep.equal([site]);
      expect(await list({ customerId, parentAssetId: site })).to.deep.equal([]);
      const renamed = await call(method.updateAsset, {
        ...{ assetId: hall, name: 'Hall 2', tags: { floor: '1' }, customerId },
        updateMask: { paths: ['name', 'tags', 'customer_id'] },
      });
      expect(renamed).to.deep.include({ name: 'Hall 2', tags: { floor: '1' }, customerId, parentAssetId: site });
      await call(method.deleteAsset, { assetId: line });
      expect(await list({ parentAssetId: hall })).to.deep.equal([]);
    });

    it('do not tell users of a customer which asset contains them, unless it is that customer’s', async () => {
      const [ours, theirs] = [await makeCustomer(), await makeCustomer()];
      const site = await makeAsset({ customerId: theirs });
      const hall = await makeAsset({ parentAssetId: site, customerId: ours });
      const line = await makeAsset({ parentAssetId: hall, customerId: ours });
      const parentsSeenBy = async (customerId: string) => {
        const { assets } = await call(method.listAssets, {}, { customerId });
        const parents = assets.map(({ assetId, parentAssetId }) => [assetId, parentAssetId]);
        for (const [assetId, parentAssetId] of parents)
          expect(await call(method.getAsset, { assetId: assetId! }, { customerId })).to.deep.include({ parentAssetId });
        return parents.filter(([assetId]) => [site, hall, line].includes(assetId!));
      };
      expect(await parentsSeenBy(ours)).to.deep.equal([
        [hall, ''],
        [line, hall],
      ]);
      const all = await parentsSeenBy('');
      expect(all).to.deep.include([hall, site]);
      expect(all).to.deep.include([line, hall]);
    });

    it('of another tenant, or unknown ones, are not found wherever they are named', async () => {
      const own = await makeAsset();
      for (const assetId of [await makeAsset({}, 'other'), newId(), 'nonsense']) {
        for (const attempt of [
          () => call(method.getAsset, { assetId }),
          () => call(method.deleteAsset, { assetId }),
          () => call(method.updateAsset, { assetId, name: 'x', updateMask: { paths: ['name'] } }),
        ]) {
          expect(await textOfRefusal(attempt())).to.equal('NOT_FOUND asset not found');
        }
        for (const attempt of [
          () => makeAsset({ parentAssetId: assetId }),
          () => move(own, assetId),
          () => call(method.listAssets, { parentAssetId: assetId }),
        ]) {
          expect(await textOfRefusal(attempt())).to.equal('NOT_FOUND parent_asset_id not found');
        }
        expect(await textOfRefusal(makeView({ entity: { case: 'assetId', value: assetId } }))).to.equal(
          'NOT_FOUND asset_id not found',
        );
      }
    });

    it('are not moved into themselves or into what is inside them', async () => {
      const [one, two, three] = [await makeAsset(), await makeAsset(), await makeAsset()];
      await move(two, one);
      await move(three, two);
      for (const parent of [one, two, three, one.toUpperCase()]) {
        expect(await textOfRefusal(move(one, parent))).to.equal(
          'FAILED_PRECONDITION parent_asset_id: the asset would be among its own ancestors',
        );
      }
      await move(three, '');
      await move(one, three);
    });

    it('are not deleted while others are inside them', async () => {
      const outer = await makeAsset();
      const inner = await makeAsset({ parentAssetId: outer });
      expect(await textOfRefusal(call(method.deleteAsset, { assetId: outer }))).to.equal(
        'FAILED_PRECONDITION the asset contains other assets: move or delete them first',
      );
      await call(method.deleteAsset, { assetId: inner });
      await call(method.deleteAsset, { assetId: outer });
    });

    it('form no cycle when two are moved into each other at the same moment', async () => {
      for (let round = 0; round < 20; round += 1) {
        const [one, two] = [await makeAsset(), await makeAsset()];
        const moves = await Promise.allSettled([move(one, two), move(two, one)]);
        expect(moves.map(({ status }) => status).sort()).to.deep.equal(['fulfilled', 'rejected']);
      }
    });

    it('wait for another move of the tenant, which they then see', async () => {
      const [one, two] = [await makeAsset(), await makeAsset()];
      let release: () => void = () => undefined;
      const released = new Promise<void>((resolve) => (release = resolve));
      let held: () => void = () => undefined;
      const holding = new Promise<void>((resolve) => (held = resolve));
      const first = test.database.tenant('acme', async (tx) => {
        await lockTrees(tx, 'acme');
        await tx.query('UPDATE assets SET parent_asset_id = $1, updated_at = now() WHERE asset_id = $2', [two, one]);
        held();
        await released;
      });
      await holding;
      const second = textOfRefusal(move(two, one));
      await lockWaitedFor(test.database);
      release();
      await first;
      expect(await second).to.contain('among its own ancestors');
    });

    it('form trees of at most 32 levels, also after moves of whole trees', async () => {
      const chain = async (length: number) => {
        const path: string[] = [];
        for (let level = 0; level < length; level += 1) {
          path.push(await makeAsset({ parentAssetId: path.at(-1) ?? '' }));
        }
        return path;
      };
      const tooDeep = `FAILED_PRECONDITION parent_asset_id: a tree of assets has at most ${maximumLevels} levels`;
      const long = await chain(maximumLevels);
      expect(await textOfRefusal(makeAsset({ parentAssetId: long.at(-1)! }))).to.equal(tooDeep);
      const short = await chain(3);
      expect(await textOfRefusal(move(short[0]!, long.at(-3)!))).to.equal(tooDeep);
      await move(short[0]!, long.at(-4)!);
      // The height of what a tree contains is corrected when a part of it leaves.
      expect(await textOfRefusal(move(long[0]!, await makeAsset()))).to.equal(tooDeep);
      await call(method.deleteAsset, { assetId: long.at(-1)! });
      await call(method.deleteAsset, { assetId: short.at(-1)! });
      await move(long[0]!, await makeAsset());
    });

    it('keep the heights of their trees through random changes', async () => {
      const tree = new Map<string, string>();
      for (let step = 0; step < 150; step += 1) {
        const ids = [...tree.keys()];
        const pick = () => ids[Math.floor(Math.random() * ids.length)] ?? '';
        const choice = Math.random();
        if (choice < 0.4 || ids.length < 5) {
          const parent = Math.random() < 0.8 ? pick() : '';
          tree.set(await makeAsset({ parentAssetId: parent }), parent);
        } else if (choice < 0.85) {
          const [moved, parent] = [pick(), pick()];
          await move(moved, parent).then(
            () => tree.set(moved, parent),
            () => undefined,
          );
        } else {
          const gone = pick();
          await call(method.deleteAsset, { assetId: gone }).then(
            () => tree.delete(gone),
            () => undefined,
          );
        }
      }
      const heightOf = (id: string): number => {
        const below = [...tree].filter(([, parent]) => parent === id).map(([child]) => heightOf(child) + 1);
        return Math.max(0, ...below);
      };
      const stored = await heights();
      for (const id of tree.keys()) expect(stored.get(id), id).to.equal(heightOf(id));
    });

    it('are walked in pages while others are created, each once', async () => {
      const parentAssetId = await makeAsset();
      await test.database.tenant('acme', async (tx) => {
        for (let index = 0; index < 1000; index += 1) {
          const asset = { assetId: newId(), name: `${index}`, type: '', parentAssetId, customerId: null, tags: {} };
          await insertAsset(tx, 'acme', asset);
        }
      });
      const walked = await walk(async (pageToken) => {
        const { assets, nextPageToken } = await call(method.listAssets, { pageSize: 100, pageToken, parentAssetId });
        await makeAsset({ parentAssetId });
        return { items: assets.map(({ assetId }) => assetId), nextPageToken };
      });
      expect(new Set(walked).size).to.equal(walked.length);
      expect(walked.length).to.be.greaterThanOrEqual(1000);
    });
  });

  describe('entity views', () => {
    const time = (text: string) => timestampFromDate(new Date(text));

    it('are created, changed, listed by customer and deleted', async () => {
      const customerId = await makeCustomer();
      const { deviceId } = await makeDevice();
      const entity = { case: 'deviceId', value: deviceId } as const;
      const [startTime, endTime] = [time('2026-01-01T00:00:00.5Z'), time('2026-02-01T00:00:00Z')];
      const made = await makeView({ entity, keys: ['t', 'h', 't'], startTime, endTime, customerId });
      expect(made).to.deep.include({ name: 'View', entity, keys: ['t', 'h'], startTime, endTime, customerId });
      const { entityViewId } = made;
      const opened = await call(method.updateEntityView, {
        ...{ entityViewId, keys: [], updateMask: { paths: ['keys', 'end_time'] } },
      });
      expect(opened).to.deep.include({ keys: [], startTime });
      expect(opened.endTime).to.equal(undefined);
      expect(await call(method.getEntityView, { entityViewId })).to.deep.equal(opened);
      const listed = await call(method.listEntityViews, { customerId });
      expect(listed.entityViews).to.deep.equal([opened]);
      const assetId = await makeAsset();
      const turned = await call(method.updateEntityView, {
        ...{ entityViewId, entity: { case: 'assetId', value: assetId }, updateMask: { paths: ['asset_id'] } },
      });
      expect(turned.entity).to.deep.equal({ case: 'assetId', value: assetId });
      await call(method.deleteEntityView, { entityViewId });
      for (const attempt of [
        () => call(method.getEntityView, { entityViewId }),
        () => call(method.deleteEntityView, { entityViewId }),
        () => call(method.updateEntityView, { entityViewId, name: 'x', updateMask: { paths: ['name'] } }),
      ]) {
        expect(await textOfRefusal(attempt())).to.equal('NOT_FOUND entity view not found');
      }
    });

    it('show no more than their author may read', async () => {
      const { deviceId } = await makeDevice();
      const customerId = await makeCustomer();
      const entity = { case: 'deviceId', value: deviceId } as const;
      const { entityViewId } = await makeView({ entity, keys: ['shown'] });
      const without = { scopes: ['entities:write'] };
      const refused = 'PERMISSION_DENIED a view shows telemetry: the scope telemetry:read for all devices is required';
      const made = call(method.createEntityView, { name: 'v', entity, customerId }, without);
      expect(await textOfRefusal(made)).to.equal(refused);
      for (const change of [{ customerId }, { keys: [] }, { entity }]) {
        const paths = ['customerId' in change ? 'customer_id' : 'keys' in change ? 'keys' : 'device_id'];
        const update = call(method.updateEntityView, { entityViewId, ...change, updateMask: { paths } }, without);
        expect(await textOfRefusal(update)).to.equal(refused);
      }
      const named = { entityViewId, name: 'Pier', updateMask: { paths: ['name'] } };
      expect(await call(method.updateEntityView, named, without)).to.include({ name: 'Pier', customerId: '' });
      await call(method.deleteEntityView, { entityViewId }, without);
    });

    it('are refused with fields that no window can have', async () => {
      const { deviceId } = await makeDevice();
      const entity = { case: 'deviceId', value: deviceId } as const;
      const startTime = time('2026-01-01T00:00:00Z');
      for (const [request, want] of [
        [{}, 'INVALID_ARGUMENT device_id or asset_id is required'],
        [{ entity, name: '' }, 'INVALID_ARGUMENT name is required'],
        [{ entity, startTime, endTime: startTime }, 'INVALID_ARGUMENT end_time must be after start_time'],
        [{ entity, startTime: { seconds: -1n, nanos: 0 } }, 'INVALID_ARGUMENT start_time must be from 1970 to 2262'],
        [{ entity, endTime: { seconds: 10n ** 11n } }, 'INVALID_ARGUMENT end_time must be from 1970 to 2262'],
        [{ entity, keys: [''] }, 'INVALID_ARGUMENT keys: "" must have 1 to 128 bytes'],
        [{ entity, keys: ['é'.repeat(65)] }, `INVALID_ARGUMENT keys: "${'é'.repeat(65)}" must have 1 to 128 bytes`],
        [{ entity, keys: ['a\0'] }, 'INVALID_ARGUMENT keys must not contain NUL'],
        [{ entity, keys: Array(257).fill('k') as string[] }, 'INVALID_ARGUMENT keys must have at most 256 entries'],
        [{ entity: { case: 'deviceId', value: newId() } }, 'NOT_FOUND device_id not found'],
        [{ entity: { case: 'deviceId', value: 'nonsense' } }, 'NOT_FOUND device_id not found'],
      ] as [MessageInitShape<typeof method.createEntityView.input>, string][]) {
        expect(await textOfRefusal(makeView(request))).to.equal(want);
      }
      const { entityViewId } = await makeView({ entity, startTime });
      const change = { entityViewId, endTime: startTime, updateMask: { paths: ['end_time'] } };
      expect(await textOfRefusal(call(method.updateEntityView, change))).to.contain(
        'end_time must be after start_time',
      );
      const unset = { entityViewId, updateMask: { paths: ['device_id'] } };
      expect(await textOfRefusal(call(method.updateEntityView, unset))).to.contain('device_id or asset_id is required');
    });

    it('are deleted with their device or asset', async () => {
      const { deviceId } = await makeDevice();
      const assetId = await makeAsset();
      const ofDevice = await makeView({ entity: { case: 'deviceId', value: deviceId } });
      const ofAsset = await makeView({ entity: { case: 'assetId', value: assetId } });
      await call(method.deleteDevice, { deviceId });
      await call(method.deleteAsset, { assetId });
      for (const { entityViewId } of [ofDevice, ofAsset]) {
        expect(await textOfRefusal(call(method.getEntityView, { entityViewId }))).to.equal(
          'NOT_FOUND entity view not found',
        );
      }
    });
  });

  describe('a user of a customer', () => {
    it('is not told which device a view shows in part, unless it is that customer’s', async () => {
      const ours = await makeCustomer();
      const { deviceId } = await makeDevice();
      const entity = { case: 'deviceId', value: deviceId } as const;
      const { entityViewId } = await makeView({ entity, customerId: ours, keys: ['b'] });
      const shown = async (customerId: string) => {
        const one = await call(method.getEntityView, { entityViewId }, { customerId });
        const { entityViews } = await call(method.listEntityViews, { customerId: ours }, { customerId });
        return [one, ...entityViews].map((view) => view.entity?.case && view.entity);
      };
      expect(await shown(ours)).to.deep.equal([undefined, undefined]);
      expect(await shown('')).to.deep.equal([entity, entity]);
      await assign(deviceId, ours);
      expect(await shown(ours)).to.deep.equal([entity, entity]);
    });

    it('sees only that customer’s entities', async () => {
      const [ours, theirs] = [await makeCustomer(), await makeCustomer()];
      const as = { customerId: ours };
      const assets = [
        await makeAsset({ customerId: ours }),
        await makeAsset({ customerId: theirs }),
        await makeAsset(),
      ];
      const { deviceId } = await makeDevice();
      const entity = { case: 'deviceId', value: deviceId } as const;
      const views = await Promise.all([ours, theirs, ''].map((customerId) => makeView({ entity, customerId })));
      expect((await call(method.listCustomers, {}, as)).customers.map((one) => one.customerId)).to.deep.equal([ours]);
      expect((await call(method.listAssets, {}, as)).assets.map((one) => one.assetId)).to.deep.equal([assets[0]]);
      const listed = (await call(method.listEntityViews, {}, as)).entityViews.map((one) => one.entityViewId);
      expect(listed).to.deep.equal([views[0]!.entityViewId]);
      await call(method.getCustomer, { customerId: ours }, as);
      await call(method.getAsset, { assetId: assets[0]! }, as);
      await call(method.getEntityView, { entityViewId: views[0]!.entityViewId }, as);
      for (const attempt of [
        () => call(method.getCustomer, { customerId: theirs }, as),
        () => call(method.getAsset, { assetId: assets[1]! }, as),
        () => call(method.getAsset, { assetId: assets[2]! }, as),
        () => call(method.getEntityView, { entityViewId: views[1]!.entityViewId }, as),
        () => call(method.getEntityView, { entityViewId: views[2]!.entityViewId }, as),
        () => call(method.listAssets, { parentAssetId: assets[1]! }, as),
        () => call(method.listAssets, { customerId: theirs }, as),
        () => call(method.listEntityViews, { customerId: theirs }, as),
        () => call(method.listDevices, { customerId: theirs }, as),
      ]) {
        expect(await textOfRefusal(attempt())).to.match(/^NOT_FOUND /);
      }
    });

    it('sees only that customer’s devices, without their groups, and changes name, tags and metadata', async () => {
      const [ours, theirs] = [await makeCustomer(), await makeCustomer()];
      const as = { customerId: ours };
      const { groupId } = await call(method.createDeviceGroup, { name: newId() });
      const device = await makeDevice({ customerId: ours, groupIds: [groupId] });
      await makeDevice({ customerId: theirs, groupIds: [groupId] });
      const { devices } = await call(method.listDevices, {}, as);
      expect(devices.map(({ deviceId, groupIds }) => ({ deviceId, groupIds }))).to.deep.equal([
        { deviceId: device.deviceId, groupIds: [] },
      ]);
      expect((await call(method.listDevices, { customerId: ours })).devices.map((one) => one.groupIds)).to.deep.equal([
        [groupId],
      ]);
      for (const unknown of [groupId, newId()]) {
        expect(await textOfRefusal(call(method.listDevices, { groupId: unknown }, as))).to.equal(
          `NOT_FOUND group_id: ${JSON.stringify(unknown)} not found`,
        );
      }
      const { deviceId } = device;
      const change = { deviceId, name: 'Pump', tags: { room: '1' }, metadata: { a: 1 } };
      const changed = await call(
        method.updateDevice,
        { ...change, updateMask: { paths: ['name', 'tags', 'metadata'] } },
        as,
      );
      expect(changed).to.deep.include({ name: 'Pump', tags: { room: '1' }, metadata: { a: 1 }, groupIds: [] });
      for (const path of ['profile_id', 'group_ids', 'customer_id', 'hardware_id']) {
        expect(
          await textOfRefusal(call(method.updateDevice, { deviceId, updateMask: { paths: [path] } }, as)),
        ).to.equal(`PERMISSION_DENIED a user who is limited to some devices may not change ${path}`);
      }
    });

    it('sees the open alarms of a device that becomes the customer’s, and those raised since', async () => {
      const [ours, theirs] = [await makeCustomer(), await makeCustomer()];
      const { deviceId } = await makeDevice({ customerId: theirs });
      const raise = async (type: string) => (await call(method.createAlarm, { deviceId, type })).alarmId;
      const [cleared, open] = [await raise('cleared'), await raise('open')];
      await call(method.clearAlarm, { alarmId: cleared });
      const seenBy = async (customerId: string) =>
        (await call(method.listAlarms, {}, { customerId })).alarms.map((alarm) => alarm.alarmId);
      expect(await seenBy(theirs)).to.deep.equal([open, cleared]);
      expect(await seenBy(ours)).to.deep.equal([]);
      await assign(deviceId, ours);
      const later = await raise('later');
      expect(await seenBy(theirs)).to.deep.equal([]);
      expect(await seenBy(ours)).to.deep.equal([later, open]);
      expect((await call(method.listAlarms, { deviceId }, { customerId: ours })).alarms).to.have.length(2);
      const alarm = { alarmId: open };
      expect((await call(method.getAlarm, alarm, { customerId: ours })).deviceId).to.equal(deviceId);
      await call(method.acknowledgeAlarm, alarm, { customerId: ours });
      await call(
        method.updateAlarm,
        { ...alarm, severity: 1, updateMask: { paths: ['severity'] } },
        { customerId: ours },
      );
      await call(method.clearAlarm, alarm, { customerId: ours });
      for (const [attempt, want] of [
        [() => call(method.getAlarm, { alarmId: cleared }, { customerId: ours }), 'alarm'],
        [() => call(method.getAlarm, { alarmId: later }, { customerId: theirs }), 'alarm'],
        [() => call(method.acknowledgeAlarm, { alarmId: later }, { customerId: theirs }), 'alarm'],
        [() => call(method.clearAlarm, { alarmId: later }, { customerId: theirs }), 'alarm'],
        [() => call(method.listAlarms, { deviceId }, { customerId: theirs }), 'device_id'],
      ] as const) {
        expect(await textOfRefusal(attempt())).to.equal(`NOT_FOUND ${want} not found`);
      }
      await call(method.deleteDevice, { deviceId });
      expect(await seenBy(ours)).to.deep.equal([]);
    });

    it('reads lists along the customer’s index', async () => {
      const customerId = await makeCustomer();
      const plans: [string, string][] = [
        [
          'devices',
          'SELECT FROM devices WHERE tenant_id = $1 AND deleted_at IS NULL AND customer_id = $2 ORDER BY device_id LIMIT 51',
        ],
        ['assets', 'SELECT FROM assets WHERE tenant_id = $1 AND customer_id = $2 ORDER BY asset_id LIMIT 51'],
        [
          'entity_views',
          'SELECT FROM entity_views WHERE tenant_id = $1 AND customer_id = $2 ORDER BY entity_view_id LIMIT 51',
        ],
        ['alarms', 'SELECT FROM alarms WHERE tenant_id = $1 AND customer_id = $2 ORDER BY alarm_id LIMIT 51'],
      ];
      for (const [table, query] of plans) {
        const { rows } = await test.database.system(async (tx) => {
          await tx.query("SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)");
          return tx.query<{ 'QUERY PLAN': string }>(`EXPLAIN ${query}`, ['acme', customerId]);
        });
        expect(rows.map((row) => row['QUERY PLAN']).join('\n')).to.contain(`${table}_by_customer`);
      }
    });
  });
});

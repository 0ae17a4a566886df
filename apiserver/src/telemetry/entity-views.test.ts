import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { TelemetryPointSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  GetHistoryRequest_Aggregation,
  GetHistoryRequest_Order,
  GetHistoryRequestSchema,
  GetLatestRequestSchema,
  IngestRequestSchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { createDevice } from '../device-registry/devices/devices.ts';
import { visibleDevices } from '../device-registry/devices/visible-devices.ts';
import { insertAsset } from '../device-registry/entities/assets.ts';
import { insertCustomer } from '../device-registry/entities/customers.ts';
import { entityViewsOf, insertView } from '../device-registry/entities/views.ts';
import type { KelletError } from '../platform/errors.ts';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { pageSlots, readTurns } from './cold/slow-read.ts';
import { noLatestValues } from './read/latest-values.ts';
import { latestWithin } from './read/view-window.ts';
import { createTelemetry, type TelemetryModule } from './service.ts';
import { withoutStore } from './testing/test-cold.ts';
import { testDevice, TestDevices, testLiveness } from './testing/test-devices.ts';
import { testPlatform } from './testing/test-platform.ts';

const methods = TelemetryService.method;
const base = Date.parse('2026-11-20T12:00:00Z');
const time = (seconds: number) => new Date(base + seconds * 1000);
const at = (seconds: number) => time(seconds).toISOString().replace('.000Z', 'Z');
const nanoseconds = (seconds: number) => BigInt(time(seconds).getTime()) * 1_000_000n;

describe('the telemetry of entity views', () => {
  let test: TestDatabase;
  let broker: Broker;
  let platform: ReturnType<typeof testPlatform>;
  let telemetry: TelemetryModule;
  const registry = new ServiceRegistry();
  const devices = new TestDevices();
  const [deviceId, customerId, otherCustomerId, assetId] = [newId(), newId(), newId(), newId()];

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
    platform = testPlatform(test.database, broker);
    await test.database.tenant('acme', async (tx) => {
      for (const id of [customerId, otherCustomerId]) {
        await insertCustomer(tx, 'acme', { customerId: id, name: id, contact: '' });
      }
      const device = { deviceId, name: 'd', hardwareId: 'hw', profileId: '', groupIds: [] };
      await createDevice(tx, { ...device, tenantId: 'acme', credentialType: 'api_key', customerId });
      const asset = { assetId, name: 'a', type: '', parentAssetId: null, customerId: null, tags: {} };
      await insertAsset(tx, 'acme', asset);
    });
    devices.add('acme', testDevice(deviceId, { customerId }));
    telemetry = createTelemetry(
      platform,
      devices,
      testLiveness(() => undefined),
      {
        ...{ maintenanceMilliseconds: 3_600_000, findView: entityViewsOf(test.database) },
        visibleDevices: visibleDevices(test.database, devices),
      },
    );
    telemetry.register(registry);
    await telemetry.start!();
    // a: every second; b: at 1 and 8; c: at 9 alone; s: text at 2.
    const points = Array.from({ length: 10 }, (_, second): MessageInitShape<typeof TelemetryPointSchema> => ({
      deviceId,
      timestamp: at(second),
      numericValues: {
        a: second,
        ...(second === 1 || second === 8 ? { b: second * 10 } : {}),
        ...(second === 9 ? { c: 9 } : {}),
      },
      stringValues: second === 2 ? { s: 'on' } : {},
    }));
    const service = { ...publicCaller, kind: 'service', tenantId: 'acme', credentialHash: 'a'.repeat(64) } as const;
    await registry.unary(methods.ingest, create(IngestRequestSchema, { points }), internalContext(service));
  });
  after(async () => {
    await telemetry.stop!();
    await platform.close();
    await broker.close();
    await test.drop();
  });

  const makeView = async (values: Record<string, unknown> = {}) => {
    const viewId = newId();
    const all = { name: 'view', device_id: deviceId, ...values };
    await test.database.tenant('acme', (tx) => insertView(tx, 'acme', viewId, new Map(Object.entries(all))));
    return viewId;
  };
  const as = (customer: string, tenantId = 'acme') =>
    internalContext({ ...publicCaller, kind: 'user', tenantId, customerId: customer });
  const latest = async (id: string, context = as('')) => {
    const found = await registry.unary(methods.getLatest, create(GetLatestRequestSchema, { deviceId: id }), context);
    return { ...found.numericValues, ...found.stringValues, at: found.timestamp ?? '' };
  };
  const history = (request: MessageInitShape<typeof GetHistoryRequestSchema>, context = as('')) =>
    registry.unary(methods.getHistory, create(GetHistoryRequestSchema, request), context);
  const seconds = (points: readonly { timestamp: string }[]) =>
    points.map(({ timestamp }) => (Date.parse(timestamp) - base) / 1000);
  const refusal = async (promise: Promise<unknown>) => {
    const error = (await promise.catch((thrown: unknown) => thrown)) as KelletError;
    return `${error.code} ${error.message}`;
  };

  it('have the points within the window, from its start until just before its end', async () => {
    const view = await makeView({ start_time: nanoseconds(2), end_time: nanoseconds(6) });
    const { points } = await history({ deviceId: view });
    expect(seconds(points)).to.deep.equal([2, 3, 4, 5]);
    expect(points.map((point) => point.deviceId)).to.deep.equal(Array(4).fill(deviceId));
    expect(points[0]!.dataHash).to.match(/^[0-9a-f]{64}$/);
    const wider = { start: timestampFromDate(time(0)), end: timestampFromDate(time(60)) };
    expect(seconds((await history({ deviceId: view, ...wider })).points)).to.deep.equal([2, 3, 4, 5]);
    const narrower = { start: timestampFromDate(time(3)), end: timestampFromDate(time(5)) };
    expect(seconds((await history({ deviceId: view, ...narrower })).points)).to.deep.equal([3, 4]);
    const outside = { start: timestampFromDate(time(6)) };
    expect(await history({ deviceId: view, ...outside })).to.deep.include({ points: [], nextPageToken: '' });
  });

  it('of devices are refused to limited users who may read the device without them, and not found by others', async () => {
    const limitedTo = (scopes: readonly string[], limited: readonly string[]) =>
      internalContext({
        ...{ ...publicCaller, kind: 'user', tenantId: 'acme', scopes: new Set(scopes) },
        limitedGrants: [{ scopes: limited, deviceGroupIds: [newId()] }],
      });
    const refusals = async (context: ReturnType<typeof as>) => [
      await refusal(latest(deviceId, context)),
      await refusal(history({ deviceId }, context)),
    ];
    const denied = 'PERMISSION_DENIED the scope telemetry:read is limited to device groups that this device is not in';
    expect(await refusals(limitedTo(['devices:read'], ['telemetry:read']))).to.deep.equal([denied, denied]);
    const absent = 'NOT_FOUND device not found';
    for (const limited of [['telemetry:read'], ['telemetry:read', 'devices:read']])
      expect(await refusals(limitedTo([], limited))).to.deep.equal([absent, absent]);
  });

  it('are read in pages, in both directions', async () => {
    const view = await makeView({ start_time: nanoseconds(1), end_time: nanoseconds(9) });
    for (const order of [GetHistoryRequest_Order.asc, GetHistoryRequest_Order.desc]) {
      const found: number[] = [];
      for (let pageToken = ''; ;) {
        const page = await history({ deviceId: view, pageSize: 3, pageToken, order });
        found.push(...seconds(page.points));
        if (page.nextPageToken === '') break;
        pageToken = page.nextPageToken;
      }
      const expected = [1, 2, 3, 4, 5, 6, 7, 8];
      expect(found).to.deep.equal(order === GetHistoryRequest_Order.asc ? expected : expected.reverse());
    }
    const { nextPageToken: pageToken } = await history({ deviceId: view, pageSize: 3 });
    expect(await refusal(history({ deviceId, pageSize: 3, pageToken }))).to.match(/^INVALID_ARGUMENT page_token/);
  });

  it('show only their keys, whatever keys are requested, and no hash of hidden values', async () => {
    const view = await makeView({ keys: ['b', 's'] });
    const { points } = await history({ deviceId: view });
    expect(points.map((point) => ({ ...point.numericValues, ...point.stringValues }))).to.deep.equal([
      { b: 10 },
      { s: 'on' },
      { b: 80 },
    ]);
    expect(points.map((point) => point.dataHash)).to.deep.equal(['', '', '']);
    expect(seconds((await history({ deviceId: view, keys: ['a', 's'] })).points)).to.deep.equal([2]);
    expect((await history({ deviceId: view, keys: ['a'] })).points).to.deep.equal([]);
    const sums = await history({
      ...{ deviceId: view, intervalSeconds: 3600, aggregation: GetHistoryRequest_Aggregation.sum },
    });
    expect(sums.points.map((point) => point.numericValues)).to.deep.equal([{ b: 90 }]);
  });

  it('show no hash of hidden values in the tokens of their pages either', async () => {
    const view = await makeView({ keys: ['b'] });
    const hidden = (await history({ deviceId })).points.map((point) => point.dataHash);
    const { nextPageToken } = await history({ deviceId: view, pageSize: 1 });
    const token = Buffer.from(nextPageToken, 'base64url');
    for (const hash of hidden) {
      expect(hash).to.match(/^[0-9a-f]{64}$/);
      for (const bytes of [Buffer.from(hash), Buffer.from(hash, 'hex')]) expect(token.includes(bytes)).to.equal(false);
    }
  });

  it('have the newest value of each key within the window', async () => {
    for (const [window, want] of [
      [{}, { a: 9, b: 80, c: 9, s: 'on', at: at(9) }],
      [{ keys: ['b', 'none'] }, { b: 80, at: at(8) }],
      [{ start_time: nanoseconds(3) }, { a: 9, b: 80, c: 9, at: at(9) }],
      [{ end_time: nanoseconds(8) }, { a: 7, b: 10, s: 'on', at: at(7) }],
      [
        { start_time: nanoseconds(2), end_time: nanoseconds(8) },
        { a: 7, s: 'on', at: at(7) },
      ],
      [
        { keys: ['b'], end_time: nanoseconds(8) },
        { b: 10, at: at(1) },
      ],
      [{ keys: ['c'], end_time: nanoseconds(8) }, { at: '' }],
      [{ start_time: nanoseconds(100) }, { at: '' }],
      [{ end_time: nanoseconds(0) }, { at: '' }],
    ] as const) {
      expect(await latest(await makeView(window)), Object.keys(window).join()).to.deep.equal(want);
    }
  });

  it('are searched for values before their end among a limited number of points', async () => {
    const window = { deviceId, start: nanoseconds(0), end: nanoseconds(8), keys: ['a', 'b'] };
    const device = noLatestValues();
    for (const key of window.keys) device.numeric.set(key, { value: 0, time: nanoseconds(9) });
    const found = async (searched?: number) => {
      const { numeric } = await latestWithin(
        { database: test.database, cold: withoutStore(), turns: readTurns(8), pages: pageSlots() },
        'acme',
        window,
        device,
        searched,
      );
      return Object.fromEntries([...numeric].map(([key, { value }]) => [key, value]));
    };
    // b is in the seventh point before the end.
    for (const searched of [1, 6]) expect(await found(searched)).to.deep.equal({ a: 7 });
    for (const searched of [7, 8, undefined]) expect(await found(searched)).to.deep.equal({ a: 7, b: 10 });
  });

  it('are for users of their customer, also if the device is not that customer’s', async () => {
    const view = await makeView({ customer_id: otherCustomerId, keys: ['b'] });
    const notFound = 'NOT_FOUND device not found';
    expect(await latest(view, as(otherCustomerId))).to.deep.equal({ b: 80, at: at(8) });
    expect((await history({ deviceId: view }, as(otherCustomerId))).points).to.have.length(2);
    for (const [id, context] of [
      [view, as(customerId)],
      [deviceId, as(otherCustomerId)],
      [await makeView(), as(otherCustomerId)],
      [view, as('', 'other')],
      [newId(), as('')],
      ['nonsense', as('')],
    ] as const) {
      expect(await refusal(latest(id, context))).to.equal(notFound);
      expect(await refusal(history({ deviceId: id }, context))).to.equal(notFound);
    }
    expect(await latest(deviceId, as(customerId))).to.deep.include({ a: 9 });
  });

  it('do not tell users of their customer which device it is, unless it is that customer’s or they hide nothing', async () => {
    const [view, ended, whole, own] = await Promise.all([
      makeView({ customer_id: otherCustomerId, keys: ['b'] }),
      makeView({ customer_id: otherCustomerId, end_time: BigInt(Date.now()) * 1_000_000n }),
      makeView({ customer_id: otherCustomerId }),
      makeView({ customer_id: customerId, keys: ['b'] }),
    ]);
    const named = async (id: string, context: ReturnType<typeof as>) => {
      const request = create(GetLatestRequestSchema, { deviceId: id });
      const { deviceId: inLatest } = await registry.unary(methods.getLatest, request, context);
      const pages = await Promise.all(
        [{}, { intervalSeconds: 3600 }].map((more) => history({ deviceId: id, ...more }, context)),
      );
      return [...new Set([inLatest, ...pages.flatMap(({ points }) => points.map((point) => point.deviceId))])];
    };
    expect(await named(view, as(otherCustomerId))).to.deep.equal(['']);
    expect(await named(ended, as(otherCustomerId))).to.deep.equal(['']);
    expect(await named(whole, as(otherCustomerId))).to.deep.equal([deviceId]);
    expect(await named(own, as(customerId))).to.deep.equal([deviceId]);
    expect(await named(view, as(''))).to.deep.equal([deviceId]);
  });

  it('show users who are not told which device it is no hash either, with which guesses at its id could be compared', async () => {
    const ended = await makeView({ customer_id: otherCustomerId, end_time: BigInt(Date.now()) * 1_000_000n });
    const hashes = async (context: ReturnType<typeof as>) =>
      new Set((await history({ deviceId: ended }, context)).points.map(({ dataHash }) => dataHash));
    expect([...(await hashes(as(otherCustomerId)))]).to.deep.equal(['']);
    const told = await hashes(as(''));
    expect(told.size).to.be.greaterThan(1);
    expect(told).not.to.include('');
  });

  it('of an asset are refused, because it has none', async () => {
    const view = await makeView({ device_id: null, asset_id: assetId });
    for (const promise of [latest(view), history({ deviceId: view })]) {
      expect(await refusal(promise)).to.equal(
        'FAILED_PRECONDITION the entity view shows an asset, which has no telemetry',
      );
    }
  });
});

import { create, type MessageInitShape, toJson } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { TelemetryPointSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  GetHistoryRequest_Aggregation,
  GetHistoryRequest_Order,
  GetHistoryRequestSchema,
  GetLatestRequestSchema,
  GetMetricsRequestSchema,
  IngestRequestSchema,
  type IngestStreamRequest,
  IngestStreamRequestSchema,
  type IngestStreamResponse,
  LatestTelemetrySchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { dataHash } from '@kellet/verify';
import { expect } from 'chai';
import { connect, type NatsConnection } from 'nats';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { type Caller, internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { outcomeOf } from '../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { forgetOldDays, readTenantUsage, Usage } from './read/usage.ts';
import { createTelemetry, type TelemetryModule, type TelemetryOptions } from './service.ts';
import { fsck } from './testing/fsck.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from './testing/test-devices.ts';
import { testPlatform } from './testing/test-platform.ts';
import { indexNextSegment } from './write/segments.ts';

type PointInit = MessageInitShape<typeof TelemetryPointSchema>;

const methods = TelemetryService.method;
const deviceId = testDeviceId(1);
const base = Date.parse('2026-11-20T12:00:00Z');
const at = (seconds: number) => new Date(base + seconds * 1000).toISOString().replace('.000Z', 'Z');

describe('TelemetryService', () => {
  let test: TestDatabase;
  let broker: Broker;
  let nats: NatsConnection;
  let platform: ReturnType<typeof testPlatform>;
  let telemetry: TelemetryModule;
  let registry: ServiceRegistry;
  let devices: TestDevices;
  let seen: string[];
  let caller: Caller;

  beforeEach(async () => {
    test = await createTestDatabase();
    const natsUrl = process.env['KELLET_TEST_NATS_URL']!;
    broker = new Broker(natsUrl, createLogger('fatal'));
    nats = await connect({ servers: natsUrl });
    for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
    devices = new TestDevices();
    devices.add('acme', testDevice(deviceId));
    devices.add('acme', testDevice(testDeviceId(2)));
    devices.add('other', testDevice(testDeviceId(3)));
    seen = [];
    caller = { ...publicCaller, kind: 'service', tenantId: 'acme', credentialHash: 'a'.repeat(64) };
    await startService();
  });

  async function startService(options: TelemetryOptions = {}) {
    platform = testPlatform(test.database, broker, { KELLET_BATCH_POINTS: '10', KELLET_PUBLISH_POINTS: 'other, acme' });
    telemetry = createTelemetry(
      platform,
      devices,
      testLiveness((tenantId, id) => seen.push(`${tenantId}/${id}`)),
      { writer: { segmentRows: 50 }, maintenanceMilliseconds: 3_600_000, ...options },
    );
    registry = new ServiceRegistry();
    telemetry.register(registry);
    await telemetry.start!();
  }
  async function stopService() {
    await telemetry.stop!();
    await platform.close();
  }
  afterEach(async () => {
    await stopService();
    await nats.close();
    await broker.close();
    await test.drop();
  });

  const context = (metadata: Record<string, string> = {}, as: Caller = caller) =>
    internalContext(as, { metadata: new Map(Object.entries(metadata)) });
  const send = (points: PointInit[], metadata: Record<string, string> = {}, as: Caller = caller) =>
    registry.unary(methods.ingest, create(IngestRequestSchema, { points }), context(metadata, as));
  const latest = (id: string) =>
    registry.unary(methods.getLatest, create(GetLatestRequestSchema, { deviceId: id }), context());
  const history = (request: MessageInitShape<typeof GetHistoryRequestSchema>, as: Caller = caller) =>
    registry.unary(methods.getHistory, create(GetHistoryRequestSchema, { deviceId, ...request }), context({}, as));
  const point = (seconds: number, n: number, id = deviceId): PointInit => ({
    deviceId: id,
    timestamp: at(seconds),
    numericValues: { n },
  });
  const rows = async () => {
    const result = await test.database.system((tx) =>
      tx.query<{ n: bigint }>('SELECT count(*) AS n FROM telemetry_points'),
    );
    return Number(result.rows[0]!.n);
  };

  it('accepts the good points of a request and reports an error for each other', async () => {
    const result = await send([
      point(0, 1),
      point(0, 1, testDeviceId(3)),
      point(0, 1, 'no-device'),
      { deviceId, timestamp: 'now' },
      point(1, 2),
    ]);
    expect(result).to.include({ accepted: 2, rejected: 3 });
    expect(result.errors.map(({ index, code }) => [index, code])).to.deep.equal([
      [1, 'NOT_FOUND'],
      [2, 'NOT_FOUND'],
      [3, 'INVALID_ARGUMENT'],
    ]);
    expect(await rows()).to.equal(2);
    expect(seen).to.deep.equal([`acme/${deviceId}`]);
  });

  it('reports at most 100 errors and rejects a request of more than 5,000 points', async () => {
    const bad = await send(Array.from({ length: 150 }, () => ({ deviceId, timestamp: '' })));
    expect(bad).to.include({ accepted: 0, rejected: 150 });
    expect(bad.errors).to.have.length(100);
    const many = Array.from({ length: 5001 }, (_, n) => point(n, n));
    expect(await outcomeOf(send(many))).to.equal('INVALID_ARGUMENT');
    expect(await send(many.slice(1))).to.include({ accepted: 5000 });
    expect(await rows()).to.equal(5000);
  });

  it('returns a key whose latest value has another type once', async () => {
    const show = async () => {
      const { numericValues, stringValues, updated } = await latest(deviceId);
      return { numericValues, stringValues, updated };
    };
    await send([{ deviceId, timestamp: at(10), numericValues: { a: 1, b: 1 } }]);
    await send([{ deviceId, timestamp: at(20), stringValues: { a: 'text' } }]);
    await send([{ deviceId, timestamp: at(5), stringValues: { b: 'late' } }]);
    const updated = { a: at(20), b: at(10) };
    expect(await show()).to.deep.equal({ numericValues: { b: 1 }, stringValues: { a: 'text' }, updated });
    await send([{ deviceId, timestamp: at(30), numericValues: { a: 2 } }]);
    expect(await show()).to.deep.equal({
      numericValues: { a: 2, b: 1 },
      stringValues: {},
      updated: { ...updated, a: at(30) },
    });
  });

  it('merges latest values by device time, from memory and after a restart', async () => {
    await send([{ deviceId, timestamp: at(10), numericValues: { a: 2, b: 2 }, stringValues: { s: 'on' } }]);
    await send([{ deviceId, timestamp: at(5), numericValues: { a: 1, c: 1 } }]);
    const expected = {
      deviceId,
      timestamp: at(10),
      numericValues: { a: 2, b: 2, c: 1 },
      stringValues: { s: 'on' },
      updated: { a: at(10), b: at(10), c: at(5), s: at(10) },
    };
    expect(await latest(deviceId)).to.deep.include(expected);
    await stopService();
    await startService();
    expect(await latest(deviceId)).to.deep.include(expected);
    await send([{ deviceId, timestamp: at(7), numericValues: { a: 0, c: 7 } }]);
    expect((await latest(deviceId)).numericValues).to.deep.equal({ a: 2, b: 2, c: 7 });
    const none = await latest(testDeviceId(2));
    expect(none.timestamp).to.equal(undefined);
    expect(toJson(LatestTelemetrySchema, none, { alwaysEmitImplicit: true })).not.to.have.property('timestamp');
    expect(await outcomeOf(latest(testDeviceId(3)))).to.equal('NOT_FOUND');
  });

  it('averages values whose squares exceed a double', async () => {
    await send([point(0, 1e200), point(1, 3e200)]);
    const { points } = await history({ intervalSeconds: 60, aggregation: GetHistoryRequest_Aggregation.avg });
    expect(points.map(({ numericValues }) => numericValues)).to.deep.equal([{ n: 2e200 }]);
  });

  it('counts the points of a day by their arrival (UTC), whenever their segment is counted', async () => {
    await send(Array.from({ length: 30 }, (_, n) => point(n, n)));
    const midnight = new Date().setUTCHours(0, 0, 0, 0);
    const { rows: segments } = await test.database.system((tx) =>
      tx.query<{ segment_id: bigint }>('SELECT segment_id FROM telemetry_segments ORDER BY segment_id'),
    );
    const id = segments[0]!.segment_id;
    // Ten arrived in the last millisecond of yesterday, the others in the first of today.
    await test.database.system((tx) =>
      tx.query(
        `UPDATE telemetry_segment_${id} SET received = $1::int8 -
           CASE WHEN ctid IN (SELECT ctid FROM telemetry_segment_${id} LIMIT 10) THEN 1 ELSE 0 END`,
        [midnight],
      ),
    );
    const today = async (tenantId: string) =>
      (await test.database.read(tenantId, (tx) => readTenantUsage(tx, tenantId))).pointsToday;
    expect(await today('acme')).to.equal(20);
    expect(await today('other')).to.equal(0);
    await test.database.maintenance((tx) => tx.query('SELECT telemetry_count_segment($1)', [id]));
    expect(await today('acme')).to.equal(20);
    expect(await today('other')).to.equal(0);
    const { rows: days } = await test.database.system((tx) =>
      tx.query<{ accepted: bigint }>('SELECT accepted FROM telemetry_days ORDER BY day'),
    );
    expect(days.map(({ accepted }) => Number(accepted))).to.deep.equal([10, 20]);
    await test.database.system((tx) => tx.query('UPDATE telemetry_days SET day = day - 8'));
    await forgetOldDays(test.database);
    expect(await today('acme')).to.equal(0);
  });

  it('keeps the usage of a tenant as the sum of that of its devices', async () => {
    const usageOf = async (table: string) => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ tenant_id: string; accepted: number; rejected: number; bytes: number }>(
          `SELECT tenant_id, sum(accepted)::int4 AS accepted, sum(rejected)::int4 AS rejected, sum(stored_bytes)::int4 AS bytes
           FROM ${table} GROUP BY tenant_id ORDER BY tenant_id`,
        ),
      );
      return rows;
    };
    const usage = new Usage(test.database, createLogger('silent'));
    for (const device of [deviceId, '', testDeviceId(2), deviceId]) {
      usage.reject('acme', device, 2);
      usage.reject('other', device);
      await usage.stop();
    }
    await send(Array.from({ length: 120 }, (_, n) => point(n, n)));
    while (await indexNextSegment(test.database));
    const { rows } = await test.database.system((tx) =>
      tx.query<{ id: bigint }>('SELECT segment_id AS id FROM telemetry_segments WHERE NOT counted'),
    );
    for (const { id } of rows)
      await test.database.maintenance((tx) => tx.query('SELECT telemetry_count_segment($1)', [id]));
    const sums = await usageOf('telemetry_tenant_usage');
    expect(sums).to.deep.equal(await usageOf('telemetry_usage'));
    expect(sums).to.deep.include.members([
      { tenant_id: 'acme', accepted: 120, rejected: 8, bytes: sums[0]!.bytes },
      { tenant_id: 'other', accepted: 0, rejected: 4, bytes: 0 },
    ]);
    const { storedBytes } = await test.database.read('acme', (tx) => readTenantUsage(tx, 'acme'));
    expect(storedBytes).to.equal(sums[0]!.bytes).and.above(0);
  });

  it('reads history across open, complete and indexed segments, each point once', async () => {
    const points = Array.from({ length: 120 }, (_, n) => point(n, n));
    for (let first = 0; first < 120; first += 30) await send(points.slice(first, first + 30));
    await send(points.slice(0, 10));
    expect(await indexNextSegment(test.database)).not.to.equal(undefined);
    const states = await test.database.system((tx) =>
      tx.query<{ state: string }>('SELECT state FROM telemetry_segments ORDER BY segment_id'),
    );
    expect(states.rows.map((row) => row.state)).to.deep.equal(['indexed', 'sealed', 'open']);
    const today = async () => (await test.database.read('acme', (tx) => readTenantUsage(tx, 'acme'))).pointsToday;
    expect(await today()).to.equal(130);
    const request = create(GetMetricsRequestSchema, { deviceId });
    const accepted = async () => (await registry.unary(methods.getMetrics, request, context())).accepted;
    expect(await accepted()).to.equal(130);
    // What a process of an earlier version leaves behind: an indexed segment that is not counted.
    await test.database.system(async (tx) => {
      await tx.query(`UPDATE telemetry_segments SET counted = false WHERE state = 'indexed'`);
      await tx.query('DELETE FROM telemetry_usage');
      await tx.query('DELETE FROM telemetry_days');
    });
    expect([await accepted(), await today()]).to.deep.equal([130, 130]);
    expect(await indexNextSegment(test.database)).not.to.equal(undefined);
    expect([await accepted(), await today()]).to.deep.equal([130, 130]);
    const all = await history({ pageSize: 10_000 });
    expect(all.points.map((p) => p.numericValues.n)).to.deep.equal(points.map((_, n) => n));
    expect(all.nextPageToken).to.equal('');
    expect(all.points[7]).to.deep.include({
      deviceId,
      timestamp: at(7),
      anchored: false,
      dataHash: dataHash({
        tenantId: 'acme',
        deviceId,
        timestampSeconds: base / 1000 + 7,
        payload: '{"numeric_values":{"n":7},"string_values":{}}',
      }),
    });
    for (const order of [GetHistoryRequest_Order.asc, GetHistoryRequest_Order.desc]) {
      const paged: number[] = [];
      let pageToken = '';
      do {
        const page = await history({ pageSize: 40, pageToken, order });
        paged.push(...page.points.map((p) => p.numericValues.n!));
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      const wanted = points.map((_, n) => n);
      expect(paged).to.deep.equal(order === GetHistoryRequest_Order.asc ? wanted : wanted.toReversed());
    }
    const some = await history({
      start: timestampFromDate(new Date(base + 3000)),
      end: timestampFromDate(new Date(base + 6000)),
    });
    expect(some.points.map((p) => p.numericValues.n)).to.deep.equal([3, 4, 5]);
  });

  it('ends a page of large points early', async () => {
    // About a megabyte each: the largest that a point may be.
    const stringValues = Object.fromEntries(Array.from({ length: 250 }, (_, key) => [`k${key}`, 'x'.repeat(4000)]));
    for (let n = 0; n < 12; n += 2) {
      await send([n, n + 1].map((second) => ({ ...point(second, second), stringValues })));
    }
    for (const order of [GetHistoryRequest_Order.asc, GetHistoryRequest_Order.desc]) {
      for (const intervalSeconds of [0, 1]) {
        const aggregation = intervalSeconds === 0 ? {} : { aggregation: GetHistoryRequest_Aggregation.last };
        const sizes: number[] = [];
        const seconds: number[] = [];
        let pageToken = '';
        do {
          const page = await history({ pageSize: 10_000, pageToken, order, intervalSeconds, ...aggregation });
          sizes.push(page.points.length);
          seconds.push(...page.points.map(({ numericValues }) => numericValues.n!));
          pageToken = page.nextPageToken;
        } while (pageToken !== '');
        expect(sizes, `interval ${intervalSeconds}`).to.deep.equal([5, 5, 2]);
        const wanted = Array.from({ length: 12 }, (_, n) => n);
        expect(seconds).to.deep.equal(order === GetHistoryRequest_Order.asc ? wanted : wanted.toReversed());
      }
    }
  });

  it('binds a page token to tenant and filters', async () => {
    await send(Array.from({ length: 5 }, (_, n) => point(n, n)));
    const { nextPageToken: pageToken } = await history({ pageSize: 2 });
    expect(await outcomeOf(history({ pageSize: 3, pageToken }))).to.equal('OK');
    expect(await outcomeOf(history({ pageToken, keys: ['n'] }))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(history({ pageToken, deviceId: testDeviceId(2) }))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(history({ pageSize: -1 }))).to.equal('INVALID_ARGUMENT');
  });

  it('returns equal values at different fractions of a second as two points with one hash', async () => {
    const twice = { numericValues: { n: 1 }, deviceId };
    await send([
      { ...twice, timestamp: '2026-11-20T12:00:00.25Z' },
      { ...twice, timestamp: '2026-11-20T12:00:00.750Z' },
      { ...twice, timestamp: '2026-11-20T12:00:00.75Z' },
    ]);
    const { points } = await history({});
    expect(points.map((p) => p.timestamp)).to.deep.equal(['2026-11-20T12:00:00.250Z', '2026-11-20T12:00:00.750Z']);
    expect(points[0]!.dataHash).to.equal(points[1]!.dataHash);
  });

  it('restricts history to keys', async () => {
    await send([
      { deviceId, timestamp: at(0), numericValues: { a: 1, b: 2 } },
      { deviceId, timestamp: at(1), stringValues: { s: 'x' } },
      { deviceId, timestamp: at(2), numericValues: { b: 3 } },
    ]);
    const { points } = await history({ keys: ['a', 's'] });
    expect(points.map((p) => [p.numericValues, p.stringValues])).to.deep.equal([
      [{ a: 1 }, {}],
      [{}, { s: 'x' }],
    ]);
  });

  it('takes no keys of history that no value can have', async () => {
    for (const key of ['k'.repeat(129), 'k\0', '\ud800']) {
      expect(await outcomeOf(history({ keys: ['a', key] })), JSON.stringify(key.slice(0, 3))).to.equal(
        'INVALID_ARGUMENT',
      );
    }
    expect((await history({ keys: ['k'.repeat(128), ''] })).points).to.deep.equal([]);
  });

  it('aggregates in buckets aligned to the epoch, each point once', async () => {
    const values = [1, 2, 3, 10, 20];
    const points = values.map((n, index) => ({ ...point(index * 20 + 30, n), stringValues: { s: `v${n}` } }));
    await send([...points, points[0]!]);
    const { avg, min, max, sum, count, last } = GetHistoryRequest_Aggregation;
    const cases: [GetHistoryRequest_Aggregation, object[], object[]][] = [
      [avg, [{ n: 1.5 }, { n: 11 }], [{}, {}]],
      [min, [{ n: 1 }, { n: 3 }], [{}, {}]],
      [max, [{ n: 2 }, { n: 20 }], [{}, {}]],
      [sum, [{ n: 3 }, { n: 33 }], [{}, {}]],
      [
        count,
        [
          { n: 2, s: 2 },
          { n: 3, s: 3 },
        ],
        [{}, {}],
      ],
      [last, [{ n: 2 }, { n: 20 }], [{ s: 'v2' }, { s: 'v20' }]],
    ];
    for (const [aggregation, numeric, text] of cases) {
      const result = await history({ intervalSeconds: 60, aggregation });
      expect(result.points.map((p) => p.timestamp)).to.deep.equal([at(0), at(60)]);
      expect(result.points.map((p) => p.numericValues)).to.deep.equal(numeric);
      expect(result.points.map((p) => p.stringValues)).to.deep.equal(text);
    }
    const first = await history({ intervalSeconds: 60, pageSize: 1, order: GetHistoryRequest_Order.desc });
    expect(first.points.map((p) => p.timestamp)).to.deep.equal([at(60)]);
    const second = await history({
      intervalSeconds: 60,
      pageSize: 1,
      order: GetHistoryRequest_Order.desc,
      pageToken: first.nextPageToken,
    });
    expect(second.points.map((p) => [p.timestamp, p.numericValues.n])).to.deep.equal([[at(0), 1.5]]);
    expect(second.nextPageToken).to.equal('');
    expect(await outcomeOf(history({ aggregation: sum }))).to.equal('INVALID_ARGUMENT');
    const unknown = 99 as GetHistoryRequest_Aggregation & GetHistoryRequest_Order;
    expect(await outcomeOf(history({ aggregation: unknown, intervalSeconds: 60 }))).to.equal('INVALID_ARGUMENT');
    expect(await outcomeOf(history({ order: unknown }))).to.equal('INVALID_ARGUMENT');
  });

  it('counts a key that is a number in one point and a string in another', async () => {
    await send([
      point(0, 1),
      point(1, 2),
      { deviceId, timestamp: at(2), stringValues: { n: 'ERR' } },
      { deviceId, timestamp: at(3), stringValues: { s: 'x' } },
    ]);
    const { points } = await history({ intervalSeconds: 60, aggregation: GetHistoryRequest_Aggregation.count });
    expect(points.map((p) => p.numericValues)).to.deep.equal([{ n: 3, s: 1 }]);
    const { points: some } = await history({
      intervalSeconds: 60,
      aggregation: GetHistoryRequest_Aggregation.count,
      keys: ['n'],
    });
    expect(some.map((p) => p.numericValues)).to.deep.equal([{ n: 3 }]);
  });

  it('reports a point as anchored once its batch is confirmed', async () => {
    await send(Array.from({ length: 15 }, (_, n) => point(n, n)));
    await test.database.system((tx) =>
      tx.query(`UPDATE anchor_batches SET status = 'confirmed' WHERE status = 'sealed'`),
    );
    const { points } = await history({});
    expect(points.map((p) => p.anchored)).to.deep.equal(points.map((_, n) => n < 10));
  });

  it('replays the response for a repeated Idempotency-Key and rejects a different body', async () => {
    const key = { 'idempotency-key': "it's one" };
    const request = [point(0, 1), { deviceId, timestamp: 'bad' }];
    const [first, second] = await Promise.all([send(request, key), send(request, key)]);
    expect(first).to.include({ accepted: 1, rejected: 1 });
    expect(second).to.deep.equal(first);
    expect(await send(request, key)).to.deep.equal(first);
    expect(await rows()).to.equal(1);
    expect(await outcomeOf(send([point(1, 1)], key))).to.equal('FAILED_PRECONDITION');
    const otherKey = { ...caller, credentialHash: 'b'.repeat(64) };
    expect(await send([point(1, 1)], key, otherKey)).to.include({ accepted: 1 });
    expect(await outcomeOf(send(request, { 'idempotency-key': '' }))).to.equal('INVALID_ARGUMENT');
  });

  it('replays it also to a user whose token was refreshed, and to a device with a new key, but to no other', async () => {
    const holders: Partial<Caller>[] = [
      { kind: 'user', userId: newId() },
      { kind: 'user', userId: newId() },
      { kind: 'device', deviceId },
    ];
    for (const [at, holder] of holders.entries()) {
      const [before, after] = ['c', 'd'].map((digit) => ({ ...caller, ...holder, credentialHash: digit.repeat(64) }));
      const key = { 'idempotency-key': 'refreshed' };
      expect(await send([point(at, 1)], key, before)).to.include({ accepted: 1 });
      expect(await send([point(at, 1)], key, after)).to.include({ accepted: 1 });
      expect(await outcomeOf(send([point(9, 1)], key, after))).to.equal('FAILED_PRECONDITION');
    }
    expect(await rows()).to.equal(holders.length);
  });

  it('keeps only the first error for an Idempotency-Key once those of a day take too many bytes, and repeats that response', async () => {
    await stopService();
    await startService({ keptErrorBytes: 5000 });
    const request = [point(0, 1), ...Array.from({ length: 40 }, () => ({ deviceId, timestamp: 'bad' }))];
    const kept: number[] = [];
    for (const key of ['one', 'two', 'three']) {
      const first = await send(request, { 'idempotency-key': key });
      expect(first).to.include({ accepted: 1, rejected: 40 });
      expect(first.errors[0]).to.include({ index: 1, code: 'INVALID_ARGUMENT' });
      expect(await send(request, { 'idempotency-key': key })).to.deep.equal(first);
      kept.push(first.errors.length);
    }
    expect(kept).to.deep.equal([40, 1, 1]);
    // Nothing is kept without a key, nor for another tenant.
    expect((await send(request)).errors).to.have.length(40);
    const other = { ...caller, tenantId: 'other' };
    expect((await send(request, { 'idempotency-key': 'one' }, other)).errors).to.have.length(41);
  });

  it('replays the response for an Idempotency-Key that another process has just stored', async () => {
    const key = { 'idempotency-key': 'shared' };
    const second = createTelemetry({ ...platform, metrics: createMetrics() }, devices, testLiveness());
    const secondRegistry = new ServiceRegistry();
    second.register(secondRegistry);
    await second.start!();
    const request = create(IngestRequestSchema, { points: [point(0, 1), point(1, 1)] });
    const responses = await Promise.all(
      [registry, secondRegistry, registry, secondRegistry].map((r) => r.unary(methods.ingest, request, context(key))),
    );
    await second.stop!();
    for (const response of responses) expect(response).to.include({ accepted: 2, rejected: 0 });
    expect(await rows()).to.equal(2);
  });

  it('acknowledges a stream message by message', async () => {
    async function* messages(): AsyncIterable<IngestStreamRequest> {
      yield create(IngestStreamRequestSchema, { sequence: 7, points: [point(0, 1)] });
      yield create(IngestStreamRequestSchema, { sequence: 8, points: [{ deviceId, timestamp: '' }] });
    }
    const responses: IngestStreamResponse[] = [];
    const stream = registry.stream(methods.ingestStream)(messages() as never, context());
    for await (const response of stream as AsyncIterable<IngestStreamResponse>) responses.push(response);
    expect(responses.map(({ sequence, accepted, rejected }) => [sequence, accepted, rejected])).to.deep.equal([
      [7, 1, 0],
      [8, 0, 1],
    ]);
  });

  it('counts accepted points for the tenant and for a device', async () => {
    await send([point(0, 1), point(1, 1), point(0, 1, testDeviceId(2)), { deviceId, timestamp: '' }, point(0, 1, 'x')]);
    await stopService();
    await startService();
    const metrics = (id: string) =>
      registry.unary(methods.getMetrics, create(GetMetricsRequestSchema, { deviceId: id }), context());
    expect(await metrics('')).to.include({ accepted: 3, rejected: 2 });
    const one = await metrics(deviceId);
    expect(one).to.include({ accepted: 2, rejected: 1, storedBytes: 2 * (45 + 32) });
    await send([point(2, 1)]);
    expect((await metrics('')).pointsPerSecond).to.be.greaterThan(0);
  });

  it('publishes points on NATS when enabled', async () => {
    const subscription = nats.subscribe('telemetry.points.>', { max: 1 });
    await nats.flush();
    await broker.ping().catch(() => new Promise((resolve) => broker.whenConnected(() => resolve(undefined))));
    await send([point(1, 2), point(2, 3)]);
    for await (const message of subscription) {
      expect(message.subject).to.equal(`telemetry.points.acme.${deviceId}`);
      const event = message.json<{
        tenantid: string;
        data: { points: { timestamp: string; device_type: string }[] };
      }>();
      expect(event.tenantid).to.equal('acme');
      expect(event.data.points.map((p) => [p.timestamp, p.device_type])).to.deep.equal([
        [at(1), 'sensor'],
        [at(2), 'sensor'],
      ]);
    }
  });

  it('publishes a large request in several messages', async () => {
    const received: number[] = [];
    const subscription = nats.subscribe('telemetry.points.acme.>', {
      callback: (_error, message) => received.push(message.json<{ data: { points: object[] } }>().data.points.length),
    });
    await nats.flush();
    await broker.ping().catch(() => new Promise((resolve) => broker.whenConnected(() => resolve(undefined))));
    await send(Array.from({ length: 3000 }, (_, n) => point(n, n)));
    const count = () => received.reduce((sum, points) => sum + points, 0);
    for (let wait = 0; count() < 3000 && wait < 100; wait += 1) await new Promise((resolve) => setTimeout(resolve, 20));
    expect(count()).to.equal(3000);
    expect(received.length).to.be.greaterThan(1);
    subscription.unsubscribe();
  });

  it('isolates tenants from one another and hides segments from every tenant', async () => {
    await send([point(0, 1)]);
    const other = { ...caller, tenantId: 'other' };
    expect(await outcomeOf(history({}, other))).to.equal('NOT_FOUND');
    const see = (tenantId: string, table: string) =>
      test.database.tenant(tenantId, async (tx) => (await tx.query(`SELECT FROM ${table}`)).rowCount);
    expect(await see('acme', 'telemetry_points')).to.equal(1);
    expect(await see('other', 'telemetry_points')).to.equal(0);
    const { rows: segments } = await test.database.system((tx) =>
      tx.query<{ segment_id: bigint }>('SELECT segment_id FROM telemetry_segments'),
    );
    for (const { segment_id: id } of segments) {
      for (const tenantId of ['acme', 'other']) {
        await see(tenantId, `telemetry_segment_${id}`).then(
          () => expect.fail('a segment was readable'),
          (error: Error) => expect(error.message).to.contain('permission denied for table'),
        );
      }
    }
    const ingest = test.database.system(async (tx) => {
      await tx.query('SET LOCAL ROLE kellet_ingest');
      await tx.query('SELECT FROM telemetry_points');
    });
    await ingest.then(
      () => expect.fail('the writer could read points'),
      (error: Error) => expect(error.message).to.contain('permission denied'),
    );
  });

  it('leaves consistent data when it stops', async () => {
    devices.add('acme', testDevice(testDeviceId(4), { anchoringMode: 'chain' }));
    devices.add('acme', testDevice(testDeviceId(5), { anchoringMode: 'per_event' }));
    await send([1, 4, 5].flatMap((device) => Array.from({ length: 13 }, (_, n) => point(n, n, testDeviceId(device)))));
    await stopService();
    const report = await fsck(test.database);
    expect(report.problems).to.deep.equal([]);
    expect(report).to.include({ rows: 39, batches: 17, sealedBatches: 17 });
    await startService();
  });
});

// Tests points_per_day during ingest, with several processes on one database.
import { create } from '@bufbuild/protobuf';
import {
  IngestStreamRequestSchema,
  type IngestStreamResponse,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { refusal } from '../../platform/testing/refusals.ts';
import type { TestDatabase } from '../../platform/testing/test-database.ts';
import { readTenantUsage } from '../read/usage.ts';
import { testDeviceId } from '../testing/test-devices.ts';
import { TestIngest } from '../testing/test-ingest.ts';
import { PointQuota, quotaMessage } from './point-quota.ts';

describe('points_per_day', function () {
  this.timeout(30_000);
  let ingest: TestIngest;
  let test: TestDatabase;
  let processes: TestIngest['processes'];
  before(async () => {
    ingest = await TestIngest.start();
    ({ test, processes } = ingest);
  });
  after(() => ingest?.stop());

  /** Sets the quota and announces it, as the tenants' store does; forgets what was used if `fresh`. */
  const setQuota = (quota: number, { tenantId = 'acme', fresh = true, anchors = 0 } = {}) =>
    test.database.system(async (tx) => {
      if (fresh) await tx.query('DELETE FROM telemetry_quotas WHERE tenant_id = $1', [tenantId]);
      const quotas = JSON.stringify({ points_per_day: quota, anchors_per_day: anchors });
      await tx.query('UPDATE tenants SET quotas = $2 WHERE tenant_id = $1', [tenantId, quotas]);
      await tx.query(`SELECT pg_notify('kellet_tenants', $1)`, [tenantId]);
    });
  const stored = async (tenantId = 'acme') => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ points: number }>('SELECT count(*)::int4 AS points FROM telemetry_points WHERE tenant_id = $1', [
        tenantId,
      ]),
    );
    return rows[0]!.points;
  };
  const leased = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ leased: number }>(`SELECT leased::int4 FROM telemetry_quotas WHERE tenant_id = 'acme'`),
    );
    return rows[0]?.leased ?? 0;
  };
  let second = 0;
  const point = (device = 2) => ({
    deviceId: testDeviceId(device),
    timestamp: new Date(1_780_000_000_000 + (second += 1) * 1000).toISOString(),
    numericValues: { n: second },
  });
  const post = (points: ReturnType<typeof point>[], process = 0, tenantId = 'acme', headers = {}) =>
    ingest.post(points, process, tenantId, headers);
  const send = (count: number, process = 0, tenantId = 'acme') =>
    post(
      Array.from({ length: count }, () => point()),
      process,
      tenantId,
    );
  /** Sets a quota that every process applies: leases of the one before are returned. */
  const begin = async (quota: number, more = {}) => {
    await setQuota(quota, more);
    // Notifications come in order: another tenant is without quota, which every process applies after the change.
    await new Promise((resolve) => setTimeout(resolve, 200));
    return stored();
  };

  it('accepts what is left of a day, rejects the rest of the request, and then refuses requests until midnight', async () => {
    const before = await begin(5);
    const first = await post([point(), point(9), point(), point(), point(), point(), point(), point()]);
    expect(first).to.include({ accepted: 5, rejected: 3 });
    expect(first.errors.map(({ index, code, message }) => [index, code, message])).to.deep.equal([
      [1, 'NOT_FOUND', 'device_id: device not found'],
      [6, 'RESOURCE_EXHAUSTED', quotaMessage],
      [7, 'RESOURCE_EXHAUSTED', quotaMessage],
    ]);
    for (const process of [0, 1]) {
      const refused = await refusal(send(2, process));
      expect(refused).to.include({ code: 'RESOURCE_EXHAUSTED', message: quotaMessage });
      const untilMidnight = 86_400 - ((Date.now() / 1000) % 86_400);
      expect(Math.abs(refused.retryAfterSeconds! - untilMidnight)).to.be.below(30);
    }
    expect(await stored()).to.equal(before + 5);
    // Points that are invalid anyway need no quota.
    expect(await post([point(9)])).to.include({ accepted: 0, rejected: 1 });
    await eventually(async () => {
      const usage = await test.database.tenant('acme', (tx) => readTenantUsage(tx, 'acme'));
      return usage.pointsRefusedToday === 6;
    });
    const refused = await processes[0]!.platform.metrics
      .getSingleMetric('kellet_telemetry_quota_refused_points_total')!
      .get();
    expect(refused.values).to.deep.equal([{ labels: { tenant: 'acme' }, value: 4 }]);
  });

  it('is exact across processes and concurrent requests', async () => {
    const before = await begin(1000);
    let accepted = 0;
    // A process may hold points that it no longer needs: it returns them within a second.
    await eventually(async () => {
      const results = await Promise.allSettled(Array.from({ length: 200 }, (_, index) => send(7, index % 2)));
      for (const response of results) if (response.status === 'fulfilled') accepted += response.value.accepted;
      expect(accepted).to.be.at.most(1000);
      return accepted === 1000;
    }, 20_000);
    await new Promise((resolve) => setTimeout(resolve, 1200));
    expect((await refusal(send(1, 0))).code).to.equal('RESOURCE_EXHAUSTED');
    expect((await refusal(send(1, 1))).code).to.equal('RESOURCE_EXHAUSTED');
    expect((await stored()) - before).to.equal(1000);
    expect(await leased()).to.equal(1000);
  });

  it('takes few leases for many requests, one at a time, and returns what is not used', async () => {
    await begin(1_000_000);
    let asked = 0;
    let running = 0;
    const database = Object.create(test.database, {
      tenant: {
        value: async (...args: Parameters<typeof test.database.tenant>) => {
          asked += 1;
          running += 1;
          expect(running).to.equal(1);
          return test.database.tenant(...args).finally(() => (running -= 1));
        },
      },
    }) as typeof test.database;
    const quota = new PointQuota({ database, logger: createLogger('fatal'), metrics: createMetrics() });
    quota.start();
    try {
      const grants = await Promise.all(Array.from({ length: 60 }, () => Promise.resolve(quota.take('acme', 10))));
      expect(grants.map(({ granted }) => granted)).to.deep.equal(Array.from({ length: 60 }, () => 10));
      expect(asked).to.equal(1);
      for (let request = 0; request < 2000; request += 1) expect((await quota.take('acme', 10)).granted).to.equal(10);
      expect(asked).to.be.below(30);
      await eventually(async () => (await leased()) === 20_600, 20_000);
      // A tenant without quota is asked about once.
      asked = 0;
      for (let request = 0; request < 100; request += 1) expect((await quota.take('other', 7)).granted).to.equal(7);
      expect(asked).to.equal(1);
    } finally {
      await quota.stop();
    }
  });

  it('counts no point twice when the quota of another tenant changes meanwhile', async () => {
    await begin(1000);
    let isChanging = false;
    let change: (channel: string, payload: string) => void;
    const database = Object.create(test.database, {
      listen: { value: (_: string[], listener: typeof change) => (change = listener) },
      tenant: {
        value: async (...args: Parameters<typeof test.database.tenant>) => {
          const result = await test.database.tenant(...args);
          if (isChanging) change('kellet_tenants', 'other');
          return result;
        },
      },
    }) as typeof test.database;
    const quota = new PointQuota({ database, logger: createLogger('fatal'), metrics: createMetrics() });
    quota.start();
    let granted = (await quota.take('acme', 10)).granted;
    isChanging = true;
    for (let request = 0; request < 3; request += 1) granted += (await quota.take('acme', 100)).granted;
    await new Promise((resolve) => setImmediate(resolve));
    await quota.stop();
    expect(granted).to.equal(310);
    expect(await leased()).to.equal(310);
  });

  it('returns its leases when the process stops', async () => {
    await begin(1000);
    const quota = new PointQuota({ ...processes[0]!.platform, database: test.database, metrics: createMetrics() });
    quota.start();
    await eventually(async () => {
      await quota.take('acme', 10);
      return (await leased()) > 20;
    });
    const taken = await leased();
    await quota.stop();
    expect(await leased()).to.be.below(taken);
  });

  it('starts over each day, and follows changes of the quota', async () => {
    await begin(3);
    expect(await send(4)).to.include({ accepted: 3 });
    await test.database.system((tx) => tx.query('UPDATE telemetry_quotas SET day = day - 1'));
    await eventually(() =>
      send(2).then(
        ({ accepted }) => accepted === 2,
        () => false,
      ),
    );
    await setQuota(6, { fresh: false });
    await eventually(() =>
      send(9).then(
        ({ accepted }) => accepted === 4,
        () => false,
      ),
    );
    expect((await refusal(send(1))).code).to.equal('RESOURCE_EXHAUSTED');
    await setQuota(0, { fresh: false });
    await eventually(() =>
      send(50).then(
        ({ accepted }) => accepted === 50,
        () => false,
      ),
    );
    await setQuota(7, { fresh: false });
    await eventually(() =>
      send(2).then(
        ({ accepted }) => accepted === 1,
        () => false,
      ),
    );
  });

  it('does not limit other tenants', async () => {
    await setQuota(0, { tenantId: 'other' });
    await begin(1);
    await send(1);
    expect((await refusal(send(1))).code).to.equal('RESOURCE_EXHAUSTED');
    expect(await send(50, 0, 'other')).to.include({ accepted: 50 });
  });

  it('does not count points that anchors_per_day rejects, nor a repeated request', async () => {
    await begin(10, { anchors: 1 });
    await test.database.system((tx) => tx.query('DELETE FROM anchor_usage'));
    expect(await post([point(1), point(1), point(1), point(1)])).to.include({ accepted: 1, rejected: 3 });
    const points = [point(), point()];
    const headers = { 'idempotency-key': 'points-1' };
    expect(await post(points, 0, 'acme', headers)).to.include({ accepted: 2 });
    expect(await post(points, 1, 'acme', headers)).to.include({ accepted: 2 });
    await eventually(async () => (await leased()) === 3);
  });

  it('does not count points that are refused because too many of the tenant wait', async () => {
    const before = await begin(1_000_000);
    const many = () => Array.from({ length: 5000 }, () => point());
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    const held = test.database.system(async (tx) => {
      await tx.query('LOCK TABLE anchor_batches IN ACCESS EXCLUSIVE MODE');
      await released;
    });
    const results: { accepted: number; refused: number } = { accepted: 0, refused: 0 };
    const requests = Array.from({ length: 60 }, () =>
      post(many()).then(
        ({ accepted }) => (results.accepted += accepted),
        (error: Error) => {
          expect(error).to.include({ code: 'UNAVAILABLE', message: 'too many points are waiting to be stored' });
          results.refused += 1;
          release();
        },
      ),
    );
    await Promise.all(requests);
    await held;
    expect(results.refused).to.be.greaterThan(0);
    expect(await stored()).to.equal(before + results.accepted);
    await eventually(async () => (await leased()) === results.accepted, 10_000);
  });

  it('lets a request that was refused be repeated under its Idempotency-Key', async () => {
    await begin(1);
    await send(1);
    const points = [point()];
    const headers = { 'idempotency-key': 'points-2' };
    expect((await refusal(post(points, 0, 'acme', headers))).code).to.equal('RESOURCE_EXHAUSTED');
    await setQuota(2, { fresh: false });
    await eventually(() =>
      post(points, 0, 'acme', headers).then(
        ({ accepted }) => accepted === 1,
        () => false,
      ),
    );
  });

  it('ends a stream of points with the error, and keeps what was acknowledged', async () => {
    const before = await begin(3);
    const requests = async function* () {
      for (let sequence = 1; sequence <= 5; sequence += 1) {
        yield create(IngestStreamRequestSchema, { sequence, points: [point()] });
      }
    };
    const acknowledged: number[] = [];
    const refused = await refusal(
      (async () => {
        const responses = processes[0]!.registry.stream(TelemetryService.method.ingestStream)(
          requests(),
          ingest.context('acme'),
        ) as AsyncIterable<IngestStreamResponse>;
        for await (const { sequence } of responses) acknowledged.push(sequence);
      })(),
    );
    expect(refused).to.include({ code: 'RESOURCE_EXHAUSTED' });
    expect(acknowledged).to.deep.equal([1, 2, 3]);
    expect(await stored()).to.equal(before + 3);
  });
});

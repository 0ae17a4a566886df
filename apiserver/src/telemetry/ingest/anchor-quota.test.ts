// Tests anchors_per_day during ingest, with several processes on one database.
import { expect } from 'chai';
import type { TestDatabase } from '../../platform/testing/test-database.ts';
import { testDeviceId } from '../testing/test-devices.ts';
import { TestIngest } from '../testing/test-ingest.ts';
import { AnchorQuota } from './anchor-quota.ts';

describe('anchors_per_day of points in per_event mode', function () {
  this.timeout(30_000);
  let ingest: TestIngest;
  let test: TestDatabase;
  before(async () => {
    ingest = await TestIngest.start();
    ({ test } = ingest);
  });
  after(() => ingest?.stop());

  const setQuota = (quotas: object, tenantId = 'acme') =>
    test.database.system(async (tx) => {
      await tx.query('DELETE FROM anchor_usage WHERE tenant_id = $1', [tenantId]);
      await tx.query('UPDATE tenants SET quotas = $2 WHERE tenant_id = $1', [tenantId, JSON.stringify(quotas)]);
    });
  const stored = async (tenantId = 'acme') => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ points: number; batches: number }>(
        `SELECT count(*)::int4 AS points, count(DISTINCT batch_id)::int4 AS batches FROM telemetry_points
         WHERE tenant_id = $1 AND device_id = $2`,
        [tenantId, testDeviceId(1)],
      ),
    );
    return rows[0]!;
  };
  let second = 0;
  /** Sends one point of each given device in one request. */
  const send = (devices: readonly number[], process = 0, headers: Record<string, string> = {}, tenantId = 'acme') => {
    const points = devices.map((device) => ({
      deviceId: testDeviceId(device),
      timestamp: new Date(1_780_000_000_000 + (second += 1) * 1000).toISOString(),
      numericValues: { n: second },
    }));
    return ingest.post(points, process, tenantId, headers);
  };

  it('rejects per_event points above the quota individually and accepts the other modes', async () => {
    await setQuota({ anchors_per_day: 3 });
    const before = await stored();
    const first = await send([1, 2, 1, 9, 3, 1, 1, 2, 1]);
    expect(first).to.include({ accepted: 6, rejected: 3 });
    expect(first.errors.map(({ index, code }) => [index, code])).to.deep.equal([
      [3, 'NOT_FOUND'],
      [6, 'RESOURCE_EXHAUSTED'],
      [8, 'RESOURCE_EXHAUSTED'],
    ]);
    expect(first.errors[1]!.message).to.contain('anchors_per_day');
    expect(await send([1, 2])).to.include({ accepted: 1, rejected: 1 });
    expect(await stored()).to.deep.equal({ points: before.points + 3, batches: before.batches + 3 });
  });

  it('is exact across processes and concurrent requests', async () => {
    await setQuota({ anchors_per_day: 50 });
    const before = await stored();
    const results = await Promise.all(Array.from({ length: 40 }, (_, i) => send([1, 1, 1], i % 2)));
    expect(results.reduce((sum, { accepted }) => sum + accepted, 0)).to.equal(50);
    expect(results.reduce((sum, { rejected }) => sum + rejected, 0)).to.equal(70);
    expect((await stored()).points - before.points).to.equal(50);
  });

  it('is shared with the batches of the other modes, resets each day and takes effect at once when raised', async () => {
    await setQuota({ anchors_per_day: 2 });
    await test.database.system((tx) => tx.query(`SELECT anchors_reserve('acme', 1)`));
    expect(await send([1, 1])).to.include({ accepted: 1, rejected: 1 });
    await test.database.system((tx) => tx.query('UPDATE anchor_usage SET day = day - 1'));
    expect(await send([1, 1, 1])).to.include({ accepted: 2, rejected: 1 });
    await test.database.system((tx) =>
      tx.query(`UPDATE tenants SET quotas = '{"anchors_per_day":4}' WHERE tenant_id = 'acme'`),
    );
    expect(await send([1, 1, 1])).to.include({ accepted: 2, rejected: 1 });
  });

  it('does not limit tenants without a quota or other tenants', async () => {
    await setQuota({ anchors_per_day: 1 });
    await setQuota({}, 'other');
    expect(await send([1, 1])).to.include({ accepted: 1, rejected: 1 });
    expect(await send([1, 1, 1, 1], 0, {}, 'other')).to.include({ accepted: 4, rejected: 0 });
    await setQuota({ anchors_per_day: 0 });
    expect(await send([1, 1])).to.include({ accepted: 2, rejected: 0 });
  });

  it('replays the response for a repeated Idempotency-Key and counts the request once', async () => {
    await setQuota({ anchors_per_day: 3 });
    const points = [1, 2].map((n) => ({
      deviceId: testDeviceId(1),
      timestamp: '2026-05-28T20:26:40Z',
      numericValues: { once: n },
    }));
    const headers = { 'idempotency-key': 'k-1' };
    const first = await ingest.post(points, 0, 'acme', headers);
    expect(first).to.include({ accepted: 2 });
    expect(await ingest.post(points, 1, 'acme', headers)).to.deep.equal(first);
    expect(await send([1, 1])).to.include({ accepted: 1, rejected: 1 });
  });

  it('reserves for all requests that arrive meanwhile in one database call', async () => {
    await setQuota({ anchors_per_day: 100 });
    let asked = 0;
    const counting = Object.create(test.database, {
      tenant: {
        value: (...args: Parameters<typeof test.database.tenant>) => {
          asked += 1;
          return test.database.tenant(...args);
        },
      },
    }) as typeof test.database;
    const quota = new AnchorQuota(counting);
    const first = quota.reserve('acme', 2);
    await new Promise((resolve) => setImmediate(resolve));
    expect(asked).to.equal(1);
    const rest = Array.from({ length: 59 }, () => quota.reserve('acme', 2));
    const granted = await Promise.all([first, ...rest]);
    expect(granted.reduce((sum, count) => sum + count, 0)).to.equal(100);
    expect(granted.slice(0, 50)).to.deep.equal(Array.from({ length: 50 }, () => 2));
    expect(asked).to.equal(2);
  });
});

import { zstdDecompressSync } from 'node:zlib';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { type AcceptedPoint, isRejection, validatePoint } from '../points/validate.ts';
import { fsck } from '../testing/fsck.ts';
import { testPoint } from '../testing/test-devices.ts';
import { TelemetryWriter, writerDefaults } from './group-commit.ts';

const start = 1_790_000_000;
const profileId = '01900000-0000-7000-8000-0000000000aa';

describe('the points that a flush hands to the rules engine', () => {
  let test: TestDatabase;
  let writer: TelemetryWriter;

  beforeEach(async () => {
    test = await createTestDatabase();
    for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
    writer = new TelemetryWriter(
      { database: test.database, logger: createLogger('fatal'), clock: systemClock, metrics: createMetrics() },
      { ...writerDefaults, batchPoints: 1000, batchSeconds: 3600 },
      () => undefined,
    );
    writer.start();
  });
  afterEach(async () => {
    await writer.stop();
    expect((await fsck(test.database)).problems).to.deep.equal([]);
    await test.drop();
  });

  /** Writes a rule as the rules engine does: with the next revision. */
  const setRule = (name: string, values: { profileId?: string; enabled?: boolean } = {}, tenantId = 'acme') =>
    test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO rules (tenant_id, rule_id, name, expression, alarm_type, profile_id, enabled)
         VALUES ($1, gen_random_uuid(), $2, 'true', 't', $3, $4)
         ON CONFLICT (tenant_id, name) WHERE deleted_at IS NULL DO UPDATE SET enabled = excluded.enabled`,
        [tenantId, name, values.profileId ?? null, values.enabled ?? true],
      );
      await tx.query(
        `INSERT INTO rule_revisions VALUES ($1, 1) ON CONFLICT (tenant_id) DO UPDATE SET revision = rule_revisions.revision + 1`,
        [tenantId],
      );
    });
  const fed = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ tenant_id: string; points: Buffer }>('SELECT tenant_id, points FROM rule_points ORDER BY position'),
    );
    return rows.flatMap(({ tenant_id, points }) =>
      (JSON.parse(zstdDecompressSync(points).toString()) as [string, string, { numeric_values: { n: number } }][]).map(
        ([, time, { numeric_values }]) =>
          `${tenant_id} ${Number(BigInt(time) / 1_000_000_000n) - start} ${numeric_values.n}`,
      ),
    );
  };
  const point = (n: number, tenantId = 'acme') => testPoint(tenantId, 1, start + n, n);
  const ofProfile = (n: number): AcceptedPoint => ({ ...point(n), device: { ...point(n).device, profileId } });

  it('are none without rules', async () => {
    await writer.append([point(1)]);
    expect(await fed()).to.deep.equal([]);
  });

  it('are those of tenants with an enabled rule, from the first flush after its commit', async () => {
    await writer.append([point(1), point(1, 'other')]);
    await setRule('r');
    await writer.append([point(2), point(2, 'other')]);
    await setRule('r', { enabled: false });
    await writer.append([point(3)]);
    expect(await fed()).to.deep.equal(['acme 2 2']);
  });

  it('are those of the profiles that the rules name', async () => {
    await setRule('r', { profileId });
    await writer.append([point(1), ofProfile(2)]);
    expect(await fed()).to.deep.equal(['acme 2 2']);
    await setRule('any');
    await writer.append([point(3)]);
    expect(await fed()).to.deep.equal(['acme 2 2', 'acme 3 3']);
  });

  it('survive quotes and backslashes, in rows of bounded size', async () => {
    await setRule('r');
    const text = `it's "a" \\ b ' ; DROP TABLE rules; --`;
    const { device } = point(7);
    const given = {
      deviceId: device.deviceId,
      timestamp: '2026-11-20T12:00:00Z',
      numericValues: {},
      stringValues: { text },
    };
    const judged = validatePoint(given, device, { kind: 'service', tenantId: 'acme', deviceId: '' }, Date.now());
    if (isRejection(judged)) throw new Error(judged.message);
    await writer.append([judged, ...Array.from({ length: 1200 }, (_, n) => point(10 + n))]);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ points: Buffer }>('SELECT points FROM rule_points ORDER BY position'),
    );
    const sizes = rows.map(({ points }) => (JSON.parse(zstdDecompressSync(points).toString()) as unknown[]).length);
    expect(sizes).to.deep.equal([500, 500, 201]);
    expect(
      (JSON.parse(zstdDecompressSync(rows[0]!.points).toString()) as [string, string, unknown][])[0]![2],
    ).to.deep.equal({
      numeric_values: {},
      string_values: { text },
    });
  });

  it('stay right while rules change under load', async () => {
    const appends: Promise<unknown>[] = [];
    for (let n = 0; n < 60; n += 1) {
      appends.push(writer.append([point(n)]));
      if (n % 10 === 5) await setRule('r');
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    await Promise.all(appends);
    await writer.append([point(100)]);
    expect(await fed()).to.include('acme 100 100');
  });
});

// Which points count as a tenant's own.
import { AUDIT_HASH_KEY, AUDIT_SEQUENCE_KEY, auditLogId } from '@kellet/verify';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { absentDevice } from '../ingest/update-results.ts';
import { leafHash } from '../points/leaf-hashes.ts';
import { type PointValues, writePayload } from '../points/payload.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { testDeviceId } from '../testing/test-devices.ts';
import { TelemetryWriter, writerDefaults } from '../write/group-commit.ts';
import { readTenantUsage, Usage } from './usage.ts';

describe('usage of a tenant', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let writer: TelemetryWriter;
  before(async () => {
    test = await createTestDatabase();
    const logger = createLogger('fatal');
    const options = { ...writerDefaults, batchPoints: 10, batchSeconds: 3600 };
    writer = new TelemetryWriter(
      { database: test.database, logger, clock: systemClock, metrics: createMetrics() },
      options,
      () => undefined,
    );
    writer.start();
  });
  after(async () => {
    await writer.stop();
    await test.drop();
  });

  const point = (deviceId: string, values: Partial<PointValues>): AcceptedPoint => {
    const given = { numericValues: {}, stringValues: {}, ...values };
    const payload = writePayload(given);
    const seconds = Math.floor(Date.now() / 1000);
    const dataHash = leafHash('acme', deviceId, seconds, payload);
    const device = absentDevice(deviceId);
    return { tenantId: 'acme', device, time: { seconds, nanoseconds: 0 }, payload, dataHash, ...given };
  };

  it('counts the points of today that devices sent, but not those that the service made', async () => {
    const sent: Partial<PointValues>[] = [
      { numericValues: { kellet: 1 } },
      { numericValues: { kelletx: 1 }, stringValues: { text: '"kellet.ota.result"' } },
      { stringValues: { 'a.kellet.b': 'kellet.' } },
      {},
    ];
    const own = point(auditLogId('acme'), {
      numericValues: { [AUDIT_SEQUENCE_KEY]: 7 },
      stringValues: { [AUDIT_HASH_KEY]: 'a'.repeat(64) },
    });
    const result = point(testDeviceId(1), { stringValues: { 'kellet.ota.result': 'successful' } });
    await writer.append([...sent.map((values) => point(testDeviceId(1), values)), { ...own, isOwn: true }, result]);

    const usage = () => test.database.read('acme', (tx) => readTenantUsage(tx, 'acme'));
    const { pointsToday, storedBytes } = await usage();
    expect(pointsToday).to.equal(sent.length);
    // The same once the segment is counted.
    await test.database.maintenance((tx) =>
      tx.query('SELECT telemetry_count_segment(segment_id) FROM telemetry_segments WHERE NOT counted'),
    );
    expect(await usage()).to.include({ pointsToday, storedBytes });
  });

  it('leaves no row of a tenant that was purged before its rejected points could be written', async () => {
    for (const tenantId of ['served', 'deleted', 'purged']) await insertTenant(test.database, tenantId);
    const usage = new Usage(test.database, createLogger('fatal'));
    for (const tenantId of ['served', 'deleted', 'purged']) usage.reject(tenantId, '', 2);
    await test.database.system(async (tx) => {
      await tx.query(`UPDATE tenants SET deleted_at = now() WHERE tenant_id IN ('deleted', 'purged')`);
      await tx.query(`UPDATE tenants SET purge_started_at = now() WHERE tenant_id = 'purged'`);
    });
    await usage.stop();
    const { rows } = await test.database.system((tx) =>
      tx.query('SELECT tenant_id, rejected::int4 FROM telemetry_usage WHERE rejected > 0 ORDER BY tenant_id'),
    );
    expect(rows).to.deep.equal([
      { tenant_id: 'deleted', rejected: 2 },
      { tenant_id: 'served', rejected: 2 },
    ]);
  });
});

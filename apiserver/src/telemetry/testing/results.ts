// Results of updates for tests, as reports leave them, and a process that anchors them until it is killed.
import { canonicalPayload, leafHash } from '@kellet/verify';
import { systemClock } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { anchorNextResults } from '../ingest/update-results.ts';
import { TelemetryWriter, writerDefaults } from '../write/group-commit.ts';
import { testDevice, testDeviceId, TestDevices } from './test-devices.ts';

/** Writes a result of each of the devices and returns their ids. */
export async function reportResults(database: Database, tenantId: string, devices: readonly number[]) {
  const seconds = 1_790_000_000;
  const results = devices.map((device) => {
    const resultId = newId();
    const deviceId = testDeviceId(device);
    const payload = canonicalPayload({}, { 'kellet.ota.result': 'successful', 'kellet.ota.result_id': resultId });
    const dataHash = Buffer.from(leafHash({ tenantId, deviceId, timestampSeconds: seconds, payload }));
    return { resultId, deviceId, payload, dataHash };
  });
  await database.system((tx) =>
    tx.query(
      `INSERT INTO ota_results (tenant_id, result_id, device_id, time, payload, data_hash)
       SELECT $1, r.*  FROM unnest($2::uuid[], $3::uuid[], $4::int8[], $5::text[], $6::bytea[]) AS r`,
      [
        tenantId,
        results.map(({ resultId }) => resultId),
        results.map(({ deviceId }) => deviceId),
        results.map(() => BigInt(seconds) * 1_000_000_000n),
        results.map(({ payload }) => payload),
        results.map(({ dataHash }) => dataHash),
      ],
    ),
  );
  return results.map(({ resultId }) => resultId);
}

async function main(databaseUrl: string): Promise<void> {
  const logger = createLogger('fatal');
  const database = new Database(databaseUrl, logger);
  const options = { ...writerDefaults, batchPoints: 50, batchSeconds: 1 };
  const writer = new TelemetryWriter(
    { database, logger, clock: systemClock, metrics: createMetrics() },
    options,
    () => undefined,
  );
  writer.start();
  const devices = new TestDevices();
  for (let n = 0; n < 10; n += 1) devices.add('acme', testDevice(testDeviceId(n)));
  const quota = { reserve: async (_tenantId: string, wanted: number) => wanted };
  for (;;) await anchorNextResults({ database, devices, writer, quota });
}

const databaseUrl = process.env['KELLET_TEST_RESULTS_DATABASE_URL'];
if (databaseUrl) await main(databaseUrl);

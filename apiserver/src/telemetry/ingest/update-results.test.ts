// Each result of an update becomes exactly one point, whatever fails on the way.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { expect } from 'chai';
import { systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { fsck } from '../testing/fsck.ts';
import { reportResults } from '../testing/results.ts';
import { testDevice, testDeviceId, TestDevices } from '../testing/test-devices.ts';
import { TelemetryWriter, writerDefaults } from '../write/group-commit.ts';
import { takeOverDeadWriters } from '../write/writer-closing.ts';
import { anchorNextResults, type ResultParts, resultsAtOnce } from './update-results.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'fatal');

describe('anchoring the results of updates', () => {
  let test: TestDatabase;
  let writers: TelemetryWriter[];
  beforeEach(async () => {
    test = await createTestDatabase();
    writers = [];
  });
  afterEach(async () => {
    await Promise.all(writers.map((writer) => writer.stop()));
    await test.drop();
  });

  const query = async <T extends object>(text: string) => (await test.database.system((tx) => tx.query<T>(text))).rows;
  function parts(change: Partial<ResultParts> = {}): ResultParts {
    const writer = new TelemetryWriter(
      { database: test.database, logger, clock: systemClock, metrics: createMetrics() },
      { ...writerDefaults, batchPoints: 10, batchSeconds: 3600 },
      () => undefined,
    );
    writer.start();
    writers.push(writer);
    const devices = new TestDevices();
    for (let n = 0; n < 10; n += 1) devices.add('acme', testDevice(testDeviceId(n)));
    const quota = { reserve: async (_tenantId: string, wanted: number) => wanted };
    return { database: test.database, devices, writer, quota, ...change };
  }
  /** Expects each result to be exactly one point, at the place that its row names. */
  async function expectAnchored(count: number): Promise<void> {
    const rows = await query<{ points: number; places: number }>(
      `SELECT count(*)::int4 AS points, (count(*) FILTER (WHERE r.batch_id = p.batch_id AND r.leaf_index = p.leaf_index))::int4
         AS places
       FROM ota_results r JOIN telemetry_points p USING (tenant_id, device_id, time, data_hash) GROUP BY result_id`,
    );
    expect(rows).to.have.length(count);
    for (const row of rows) expect(row).to.deep.equal({ points: 1, places: 1 });
    expect((await fsck(test.database)).problems).to.deep.equal([]);
  }

  it('makes one point of each, in the batch that its row names', async () => {
    await reportResults(
      test.database,
      'acme',
      Array.from({ length: 25 }, (_, n) => n % 10),
    );
    const own = parts();
    expect(await anchorNextResults(own)).to.equal(25);
    expect(await anchorNextResults(own)).to.equal(0);
    await expectAnchored(25);
  });

  it('makes one point of each when several processes anchor at the same time', async () => {
    const several = [parts(), parts(), parts()];
    for (let round = 0; round < 5; round += 1) {
      await reportResults(test.database, 'acme', [1, 2, 3, 4]);
      await Promise.all(several.map((one) => anchorNextResults(one)));
    }
    await anchorNextResults(several[0]!);
    await expectAnchored(20);
  });

  it('commits no flush with a result that has been anchored', async () => {
    await reportResults(test.database, 'acme', [1]);
    const own = parts();
    await anchorNextResults(own);
    await query('UPDATE ota_results SET batch_id = NULL');
    // The row says that the result waits, but while it is on its way another flush anchors it.
    const slow: ResultParts['writer'] = {
      append: async (points) => {
        await query(`UPDATE ota_results SET batch_id = (SELECT batch_id FROM telemetry_points)`);
        return own.writer.append(points);
      },
    };
    await anchorNextResults({ ...own, writer: slow });
    expect(await query('SELECT FROM telemetry_points')).to.have.length(1);
  });

  it('anchors the results of deleted devices', async () => {
    await reportResults(test.database, 'acme', [77]);
    await anchorNextResults(parts());
    await expectAnchored(1);
  });

  it('anchors results beyond the quota of anchors together with others', async () => {
    const own = parts({ quota: { reserve: async (_tenantId, wanted) => Math.min(wanted, 1) } });
    (own.devices as TestDevices).add('acme', testDevice(testDeviceId(1), { anchoringMode: 'per_event' }));
    await reportResults(test.database, 'acme', [1, 1, 1, 2]);
    await anchorNextResults(own);
    await expectAnchored(4);
    const batches = await query('SELECT anchor_mode FROM anchor_batches ORDER BY anchor_mode');
    expect(batches).to.deep.equal([{ anchor_mode: 'merkle' }, { anchor_mode: 'per_event' }]);
  });

  it('anchors those of others while very many of a tenant cannot be', async () => {
    await reportResults(
      test.database,
      'acme',
      Array.from({ length: resultsAtOnce + 100 }, (_, n) => n % 10),
    );
    await reportResults(test.database, 'other', [2, 3]);
    const own = parts();
    const devices = {
      lookup: (tenantId: string, ids: readonly string[]) =>
        tenantId === 'acme' ? Promise.reject(new Error('too slow')) : own.devices.lookup(tenantId, ids),
      lookupEach: () => Promise.reject(new Error('not called')),
    };
    for (let round = 0; round < 2; round += 1)
      expect(await anchorNextResults({ ...own, devices }).catch(String)).to.equal('Error: too slow');
    const anchored = await query<{ tenant_id: string }>('SELECT tenant_id FROM ota_results WHERE batch_id IS NOT NULL');
    expect(anchored.map((row) => row.tenant_id)).to.deep.equal(['other', 'other']);
    expect(await anchorNextResults(own)).to.equal(resultsAtOnce);
  });

  it('keeps results while they cannot be stored', async () => {
    await reportResults(test.database, 'acme', [1, 2]);
    const failing = { append: () => Promise.reject(new Error('no connection')) };
    const failed = await anchorNextResults({ ...parts(), writer: failing }).catch(String);
    expect(failed).to.equal('Error: no connection');
    await anchorNextResults(parts());
    await expectAnchored(2);
  });

  it('makes one point of each although processes are killed', async () => {
    for (let kill = 0; kill < 3; kill += 1) {
      const child = spawn(process.execPath, [path.join(import.meta.dirname, '../testing/results.ts')], {
        env: { ...process.env, KELLET_TEST_RESULTS_DATABASE_URL: test.url },
        stdio: ['ignore', 'ignore', 'inherit'],
      });
      const exit = once(child, 'exit');
      let reporting = true;
      const reports = (async () => {
        while (reporting) await reportResults(test.database, 'acme', [0, 1, 2, 3, 4]);
      })();
      // At different moments of a flush.
      const target = 100 * (kill + 1) + 7 * kill;
      const anchored = 'SELECT FROM ota_results WHERE batch_id IS NOT NULL LIMIT 1000';
      while ((await query(anchored)).length < target && child.exitCode === null);
      child.kill('SIGKILL');
      await exit;
      reporting = false;
      await reports;
      for (let wait = 0; wait < 100 && (await takeOverDeadWriters(test.database, logger)) === 0; wait += 1) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
    const own = parts();
    while ((await anchorNextResults(own)) > 0);
    const [{ results } = { results: 0 }] = await query<{ results: number }>(
      'SELECT count(*)::int4 AS results FROM ota_results',
    );
    expect(results).to.be.greaterThan(300);
    await expectAnchored(results);
  }).timeout(60_000);
});

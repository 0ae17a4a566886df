// Bounds the hot segments while batches stay open for an hour: their points turn cold, and the batches are sealed all the same, also
// when their writer is killed.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { ArtifactReader } from './device-link/ota/artifacts/artifact-reader.ts';
import { ArtifactStores } from './device-link/ota/artifacts/artifact-stores.ts';
import { batchChecks } from './fsck/check-batches.ts';
import { coldChecks } from './fsck/check-cold.ts';
import { pointChecks } from './fsck/check-points.ts';
import type { ObjectStore } from './platform/object-store/object-store.ts';
import { openStore } from './platform/object-store/open-store.ts';
import { createLogger } from './platform/observability/logger.ts';
import { createMetrics } from './platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { ColdFiles } from './telemetry/cold/cold-files.ts';
import { doColdWork } from './telemetry/cold/cold-work.ts';
import { indexNextSegment } from './telemetry/write/segments.ts';
import { takeOverDeadWriters } from './telemetry/write/writer-closing.ts';

const logger = createLogger('fatal');
const noS3 = { endpoint: '', region: '', accessKey: '', secretKey: '' };

describe('batches that are open for an hour', function () {
  this.timeout(90_000);
  let test: TestDatabase;
  let folder: string;
  let store: ObjectStore;
  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-cold-'));
    store = openStore(pathToFileURL(folder).href, noS3);
  });
  after(async () => {
    store.close();
    await test.drop();
    await rm(folder, { recursive: true, force: true });
  });

  const query = async <T extends object>(text: string, values: unknown[] = []) =>
    (await test.database.system((tx) => tx.query<T>(text, values))).rows;

  /** Runs a writer whose batches stay open over several segments, and kills it. */
  async function leaveOpenBatches(): Promise<void> {
    const child = spawn(process.execPath, [path.join(import.meta.dirname, 'telemetry/testing/crash-writer.ts')], {
      env: {
        ...process.env,
        KELLET_TEST_CRASH_DATABASE_URL: test.url,
        KELLET_TEST_CRASH_LIMITS: JSON.stringify({ batchPoints: 100_000, batchSeconds: 3600, segmentRows: 500 }),
        KELLET_TEST_FIRST_ROUND: '0',
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let lines = 0;
    const output = createInterface({ input: child.stdout });
    output.on('line', () => {
      lines += 1;
      if (lines === 400) child.kill('SIGKILL');
    });
    await Promise.all([once(child, 'exit'), once(output, 'close')]);
    expect(child.signalCode).to.equal('SIGKILL');
  }

  it('keep no more segments hot than others, and are sealed with all their leaves after their writer was killed', async () => {
    await leaveOpenBatches();
    while (await indexNextSegment(test.database));
    // What follows from the points is written.
    await query('DELETE FROM telemetry_tails');
    const open = await query<{ batch_id: string; leaves: bigint }>(
      `SELECT batch_id, count(DISTINCT data_hash) AS leaves FROM telemetry_points JOIN anchor_batches USING (batch_id)
       WHERE status = 'open' GROUP BY batch_id ORDER BY batch_id`,
    );
    expect(open.length).to.be.greaterThan(1);
    const files = new ColdFiles(store, { logger, metrics: createMetrics() });
    const parts = { database: test.database, logger, store, files, hotSeconds: 86_400, hotSegments: 2 };
    expect(await doColdWork(parts, new AbortController().signal)).to.equal(true);
    const inState = async (state: string) =>
      (await query('SELECT FROM telemetry_segments WHERE state = $1', [state])).length;
    expect(await inState('indexed')).to.equal(2);
    expect(await inState('cold')).to.be.greaterThan(1);
    expect(await query(`SELECT FROM anchor_batches WHERE status = 'open'`)).to.have.length(open.length);

    // The server releases the lock once it notices that the peer is gone.
    for (let wait = 0; wait < 200 && (await takeOverDeadWriters(test.database, logger)) === 0; wait += 1)
      await new Promise((resolve) => setTimeout(resolve, 50));
    const sealed = await query(
      `SELECT batch_id, (length(leaves) / 32)::int8 AS leaves FROM anchor_batches
       WHERE status = 'sealed' AND batch_id = ANY($1) ORDER BY batch_id`,
      [open.map((batch) => batch.batch_id)],
    );
    expect(sealed).to.deep.equal(open);
    // Every point, hot or cold, is among the leaves of its batch, and these lead to its root.
    const { database } = test;
    const artifacts = new ArtifactReader(database, new ArtifactStores('postgres', noS3));
    const checkParts = { database, files, artifacts, tenantId: undefined, batchSeconds: 30 };
    const counts = { cold_points: 0, batches: 0 };
    for (const checks of [pointChecks, batchChecks, coldChecks]) {
      for await (const check of checks(checkParts)) {
        const { checked, findings } = await check();
        expect(findings.filter(({ kind }) => kind !== 'latest_values')).to.deep.equal([]);
        counts.cold_points += checked.cold_points ?? 0;
        counts.batches += checked.batches ?? 0;
      }
    }
    expect(counts.cold_points).to.be.greaterThan(500);
    expect(counts.batches).to.be.greaterThan(open.length);
  });
});

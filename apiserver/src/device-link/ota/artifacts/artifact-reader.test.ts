// Reading and writing artifacts under load, on a real database: processes that share a quota, and the
// memory of a large artifact. KELLET_TEST_ARTIFACT_BYTES sets its size (make artifacts BYTES=…).
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { Database } from '../../../platform/database/database.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import { TestS3 } from '../../../platform/testing/test-s3.ts';
import { noS3, testIntake, testStores } from '../testing/test-artifacts.ts';
import { ArtifactIntake } from './artifact-intake.ts';
import { chunkBytes, stageArtifact } from './artifact-store.ts';
import { ArtifactStores } from './artifact-stores.ts';
import { ArtifactWriter, writePlaces } from './artifact-writer.ts';
import { ChunkCache } from './chunk-cache.ts';

const tenant = 'acme';
const mebibyte = 1024 * 1024;
const largeBytes = Number(process.env['KELLET_TEST_ARTIFACT_BYTES'] ?? 96 * mebibyte);

/** Chunks that are kept for devices. */
const cacheBytes = 8 * mebibyte;

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Returns the bytes that buffers in use occupy. */
function usedByBuffers(): number {
  collectGarbage();
  // Array buffers are freed by another thread, which on a busy machine lags; the next collection waits for it.
  collectGarbage();
  return process.memoryUsage().arrayBuffers;
}

/** Yields bytes that differ in every chunk, without holding them. */
async function* generated(sizeBytes: number): AsyncGenerator<Buffer, void> {
  const piece = Buffer.alloc(chunkBytes);
  for (let at = 0; at < sizeBytes; at += piece.length) {
    piece.writeDoubleLE(at);
    yield Buffer.from(piece.subarray(0, Math.min(piece.length, sizeBytes - at)));
  }
}

describe('artifacts under load', function () {
  this.timeout(120_000 + largeBytes / 2000);
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenant);
  });
  after(() => test.drop());
  const cleanUps: (() => unknown)[] = [];
  afterEach(async () => {
    for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp();
  });

  it('counts in every process what any process receives', async () => {
    await insertTenant(test.database, 'few', { quotas: { storage_bytes: 10 * mebibyte } });
    const processes = Array.from({ length: 4 }, () => new Database(test.url, createLogger('silent')));
    const places = writePlaces();
    const outcomes = await Promise.all(
      Array.from({ length: 24 }, async (_, index) => {
        const database = processes[index % processes.length]!;
        try {
          // Half of them do not state their size.
          const stated = index % 2 === 0 ? mebibyte : 0;
          const key = await database.tenant('few', (tx) => stageArtifact(tx, 'few', stated, ''));
          const writer = new ArtifactWriter({ database, stores: testStores(), places }, 'few', key, 0);
          for await (const piece of generated(mebibyte)) await writer.write(piece);
          await writer.flush();
          return 'stored';
        } catch (error) {
          return (error as { code?: string }).code;
        }
      }),
    );
    for (const database of processes) await database.close();
    const { rows } = await test.database.system((tx) =>
      tx.query<{ used: number; held: number }>(
        `SELECT sum(size_bytes)::float8 AS used,
           (SELECT sum(length(data))::float8 FROM artifact_chunks WHERE tenant_id = 'few') AS held
         FROM artifacts WHERE tenant_id = 'few'`,
      ),
    );
    expect(new Set(outcomes)).to.deep.equal(new Set(['stored', 'RESOURCE_EXHAUSTED']));
    expect(outcomes.filter((outcome) => outcome === 'stored').length).to.be.within(5, 10);
    expect(rows[0]!.used).to.be.at.most(10 * mebibyte);
    expect(rows[0]!.held).to.be.at.most(rows[0]!.used);
  });

  for (const where of ['postgres', 'a folder', 'S3'] as const) {
    it(`fetches, stores and serves ${Math.round(largeBytes / mebibyte)} MiB in ${where} with little memory`, async () => {
      const folder = await mkdtemp(join(tmpdir(), 'kellet-large-'));
      cleanUps.push(
        () => rm(folder, { recursive: true, force: true }),
        () => test.database.system((tx) => tx.query('DELETE FROM artifacts WHERE tenant_id = $1', [tenant])),
      );
      const s3 = where === 'S3' ? await TestS3.start('artifacts') : undefined;
      if (s3) cleanUps.push(() => s3.stop());
      const name = s3 ? 's3://artifacts' : where === 'postgres' ? where : pathToFileURL(folder).href;
      const stores = new ArtifactStores(name, s3?.settings ?? noS3);
      const hash = createHash('sha256');
      for await (const piece of generated(largeBytes)) hash.update(piece);
      const sha256 = hash.digest();
      const server = createServer((_request, response) => {
        pipeline(Readable.from(generated(largeBytes)), response).catch(() => undefined);
      }).listen(0, '127.0.0.1');
      cleanUps.push(() => server.close());
      await once(server, 'listening');
      const uri = `http://127.0.0.1:${(server.address() as AddressInfo).port}/image`;
      const intake = new ArtifactIntake(test.database, createLogger('silent'), testIntake({ stores }));
      cleanUps.push(() => intake.stop());
      const artifact = { tenantId: tenant, sha256, sizeBytes: largeBytes };
      let most = 0;
      const before = usedByBuffers();
      const watching = new AbortController();
      cleanUps.push(() => watching.abort());
      const watched = (async () => {
        for (;;) {
          const started = performance.now();
          most = Math.max(most, usedByBuffers());
          // A collection takes long in a process that has run many tests, and must leave time for the work.
          await sleep(250 + 5 * (performance.now() - started), undefined, { signal: watching.signal });
        }
      })().catch(() => undefined);
      await intake.fetch(tenant, uri, artifact, { signal: watching.signal });
      const { reader } = intake;
      expect((await reader.digest(tenant, sha256, largeBytes)).equals(sha256)).to.equal(true);
      const last = await reader.read(tenant, sha256, largeBytes - 10, 100);
      expect(last.length).to.equal(10);
      // As devices get it.
      const cache = new ChunkCache(reader, cacheBytes);
      const served = createHash('sha256');
      for (let at = 0; at < largeBytes; at += chunkBytes) {
        served.update(await cache.range(artifact, at, Math.min(chunkBytes, largeBytes - at)));
      }
      expect(served.digest().equals(sha256)).to.equal(true);
      watching.abort();
      await watched;
      // S3 keeps 64 MiB of blocks.
      const allowance = (where === 'S3' ? 94 : 48) * mebibyte + cacheBytes;
      expect(most - before).to.be.below(allowance);
    });
  }
});

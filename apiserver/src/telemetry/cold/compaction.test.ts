// Runs of several files, of which one begins with the device that fills the one before, and ends with another device.
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { newId } from '../../platform/ids.ts';
import type { ObjectStore } from '../../platform/object-store/object-store.ts';
import { openStore } from '../../platform/object-store/open-store.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { leafHash } from '../points/leaf-hashes.ts';
import { coldPoints } from '../read/cold-points.ts';
import { addFiles, beginAttempt, filesOfRange, scheduleCompaction } from './cold-file-store.ts';
import { ColdFiles } from './cold-files.ts';
import { compactDates } from './compaction.ts';
import { FileEncoder } from './file-encoder.ts';
import type { ColdRow } from './file-layout.ts';
import { type AddRows, writeFiles } from './file-writer.ts';

const tenantId = 'acme';
const midnight = 1_789_948_800;
const nanoseconds = 1_000_000_000n;
const [first, second, third] = [newId(), newId(), newId()].sort() as [string, string, string];

/** Returns a row at so many seconds after midnight. */
function rowAt(deviceId: string, seconds: number, texts: readonly string[] = ['1']): ColdRow {
  const time = midnight + seconds;
  const values = texts.map((text, n) => `"text${100 + n}":"${text}"`);
  const payload = `{"numeric_values":{},"string_values":{${values.join(',')}}}`;
  return {
    ...{ deviceId, time: BigInt(time) * nanoseconds, payload, batchId: newId(), leafIndex: 0 },
    dataHash: Buffer.from(leafHash(tenantId, deviceId, time, payload), 'latin1'),
    received: BigInt(time) * nanoseconds,
  };
}

/** Texts of a mebibyte, which cannot be compressed to much less. */
const largeTexts = (): string[] => {
  const bytes = randomBytes(250 * 3066);
  return Array.from({ length: 250 }, (_, n) => bytes.toString('base64', n * 3066, (n + 1) * 3066));
};

describe('runs of several cold files', function () {
  this.timeout(120_000);
  let test: TestDatabase;
  let folder: string;
  let store: ObjectStore;
  let files: ColdFiles;
  const read = new Set<string>();

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenantId);
    folder = await mkdtemp(join(tmpdir(), 'kellet-runs-'));
    store = openStore(pathToFileURL(folder).href, { endpoint: '', region: '', accessKey: '', secretKey: '' });
    const readOriginal = store.read.bind(store);
    store.read = (name, ...range) => {
      read.add(name);
      return readOriginal(name, ...range);
    };
    files = new ColdFiles(store, { logger: createLogger('fatal'), metrics: createMetrics() });
    await write(async (add) => {
      for (let n = 0; n < 75; n += 1) await add(tenantId, [rowAt(first, 21_600 + n, largeTexts())]);
      for (let n = 0; n < 5; n += 1) await add(tenantId, [rowAt(second, n)]);
    });
    expect(await liveFiles()).to.equal(2);
    await write((add) => add(tenantId, [rowAt(first, 80_000)]));
  });
  after(async () => {
    store.close();
    await rm(folder, { recursive: true, force: true });
    await test.drop();
  });

  async function write(give: (add: AddRows) => Promise<void>): Promise<void> {
    const attemptId = newId();
    await test.database.system((tx) => beginAttempt(tx, attemptId));
    const written = await writeFiles({ store, files, attemptId, checkpoint: () => undefined }, give);
    await test.database.system(async (tx) => {
      await addFiles(tx, written);
      await scheduleCompaction(tx, written);
    });
  }

  const liveFiles = async (): Promise<number> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ files: number }>(`SELECT count(*)::int4 AS files FROM cold_files WHERE state = 'live'`),
    );
    return rows[0]!.files;
  };

  const points = (deviceId: string, descending: boolean) => {
    const range = { tenantId, deviceId, from: 0n, to: 2n ** 62n };
    const deadline = performance.now() + 60_000;
    return coldPoints(test.database, files, range, { descending, rows: 1000, deadline });
  };

  /** Returns the times of the points of a device, in seconds after midnight. */
  async function timesOf(deviceId: string, descending = false): Promise<number[]> {
    const times: number[] = [];
    for await (const { time } of points(deviceId, descending)) times.push(Number(time / nanoseconds) - midnight);
    return times;
  }

  const firstTimes = [...Array.from({ length: 75 }, (_, n) => 21_600 + n), 80_000];

  it('are read one after another, as far as they are needed', async () => {
    for (const descending of [false, true]) {
      read.clear();
      const rows = points(first, descending);
      expect((await rows.next()).done).to.equal(false);
      await rows.return(undefined);
      // One of each run.
      expect(read.size).to.equal(2);
      expect(await timesOf(first, descending)).to.deep.equal(descending ? firstTimes.toReversed() : firstTimes);
    }
  });

  it('are read few rows at a time where these are large', async () => {
    const piecesOf = async (deviceId: string): Promise<number[]> => {
      const range = { tenantId, deviceId, from: 0n, to: 2n ** 62n };
      const found = await test.database.system((tx) => filesOfRange(tx, range, false, 1));
      const pieces: number[] = [];
      for (const file of found) {
        const wanted = { ...range, descending: false, pieceRows: 100 };
        for await (const rows of files.rows(file, wanted)) pieces.push(rows.length);
      }
      return pieces;
    };
    const pieces = await piecesOf(first);
    expect(pieces.reduce((sum, rows) => sum + rows, 0)).to.equal(firstTimes.length);
    expect(Math.max(...pieces)).to.equal(2);
    await write((add) =>
      add(
        tenantId,
        Array.from({ length: 100 }, (_, n) => rowAt(third, n)),
      ),
    );
    expect(await piecesOf(third)).to.deep.equal([100]);
  });

  it('are merged in the order of their rows, so that all points are found afterwards', async () => {
    await test.database.system((tx) => tx.query('UPDATE cold_dates SET compact_at = now()'));
    expect(await compactDates(test.database, { store, files, checkpoint: () => undefined })).to.equal(true);
    expect(await liveFiles()).to.equal(2);
    expect(await timesOf(first)).to.deep.equal(firstTimes);
    expect(await timesOf(second)).to.deep.equal([0, 1, 2, 3, 4]);
    expect(await timesOf(second, true)).to.deep.equal([4, 3, 2, 1, 0]);
  });

  it('are not written with rows that are out of order', () => {
    const encoder = new FileEncoder();
    encoder.add(rowAt(first, 2));
    expect(() => encoder.add(rowAt(first, 1))).to.throw('out of order');
    encoder.add(rowAt(second, 1));
    expect(() => encoder.add(rowAt(first, 3))).to.throw('out of order');
  });
});

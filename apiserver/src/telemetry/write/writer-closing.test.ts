// Closes killed writers whose batches have been open for long: in steps, which may be interrupted, and without reading segments
// whose leaves are recorded.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { fsck } from '../testing/fsck.ts';
import { eachSegment } from './each-segment.ts';
import { forgetSealed, recordNextSegment } from './open-batch-leaves.ts';
import { indexNextSegment } from './segments.ts';
import { takeOverDeadWriters } from './writer-closing.ts';

const logger = createLogger('fatal');

describe('closing a writer', function () {
  this.timeout(90_000);
  let test: TestDatabase;
  beforeEach(async () => (test = await createTestDatabase()));
  afterEach(() => test.drop());

  const query = async <T extends object>(text: string) => (await test.database.system((tx) => tx.query<T>(text))).rows;

  /** Runs a program of `testing/` and kills it after so many lines of output. Returns whether it was killed by then. */
  async function runAndKill(program: string, lines: number, limits: object = {}): Promise<boolean> {
    const child = spawn(process.execPath, [path.join(import.meta.dirname, `../testing/${program}.ts`)], {
      env: {
        ...process.env,
        KELLET_TEST_CRASH_DATABASE_URL: test.url,
        KELLET_TEST_CRASH_LIMITS: JSON.stringify(limits),
        KELLET_TEST_FIRST_ROUND: '0',
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let count = 0;
    const output = createInterface({ input: child.stdout });
    output.on('line', () => {
      count += 1;
      if (count === lines) child.kill('SIGKILL');
    });
    await Promise.all([once(child, 'exit'), once(output, 'close')]);
    return child.signalCode === 'SIGKILL';
  }

  /** Leaves open batches of a killed writer in several segments. */
  const leaveOpenBatches = () =>
    runAndKill('crash-writer', 400, { batchPoints: 100_000, batchSeconds: 3600, segmentRows: 500 });

  async function takeOver(): Promise<void> {
    // The server releases the lock once it notices that the peer is gone.
    for (let wait = 0; wait < 200; wait += 1) {
      if ((await takeOverDeadWriters(test.database, logger)) === 1) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    expect.fail('the dead writer could not be taken over');
  }

  async function expectClosed(): Promise<void> {
    const report = await fsck(test.database);
    expect(report.problems).to.deep.equal([]);
    expect(report.sealedBatches).to.equal(report.batches);
    expect(await query('SELECT FROM telemetry_writers WHERE closed_at IS NULL')).to.have.length(0);
    await forgetSealed(test.database);
    expect(await query('SELECT FROM open_batch_leaves')).to.have.length(0);
    expect(await query('SELECT FROM open_batch_segments')).to.have.length(0);
  }

  it('is continued wherever a process that closed it was killed', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    const open = await query<{ segments: number }>(
      `SELECT jsonb_array_length(segments) AS segments FROM anchor_batches WHERE status = 'open' AND anchor_mode = 'chain'`,
    );
    expect(open).to.have.length(1);
    const added = await query('SELECT FROM open_batch_segments');
    expect(added.length, 'flushes that continued the chains').to.be.greaterThan(3);
    expect((await fsck(test.database)).problems).to.deep.equal([]);
    // Each is killed one step later, if it comes so far.
    let kills = 0;
    while (await runAndKill('crash-closer', (kills % 3) + 1)) kills += 1;
    expect(kills).to.be.greaterThan(2);
    await expectClosed();
    // What was written before the writer died is indexed, and each leaf is found.
    while (await indexNextSegment(test.database));
    expect((await fsck(test.database)).problems).to.deep.equal([]);
  });

  it('waits for no reader of an empty segment, behind whom all others would wait', async () => {
    const writers = ['0198f3a2-7c41-7d3e-9b52-000000000001', '0198f3a2-7c41-7d3e-9b52-000000000002'];
    const segments: bigint[] = [];
    for (const writerId of writers) {
      await query(`INSERT INTO telemetry_writers (writer_id) VALUES ('${writerId}')`);
      const [opened] = await query<{ id: bigint }>(`SELECT telemetry_open_hot_segment('${writerId}') AS id`);
      segments.push(opened!.id);
    }
    const open = () => query(`SELECT FROM telemetry_segments WHERE state = 'open'`);
    await test.database.system(async (tx) => {
      await tx.query(`SELECT FROM telemetry_segment_${segments[0]!}`);
      const began = performance.now();
      expect(await takeOverDeadWriters(test.database, logger), 'the other one').to.equal(1);
      expect(performance.now() - began).to.be.below(5000);
      expect(await open()).to.have.length(1);
    });
    expect(await takeOverDeadWriters(test.database, logger)).to.equal(1);
    expect(await open()).to.have.length(0);
  });

  it('reads no segment whose leaves are recorded', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    await query(`UPDATE anchor_batches SET created_at = created_at - interval '2 hours'`);
    await query(`UPDATE telemetry_segments SET sealed_at = sealed_at - interval '1 hour' WHERE state = 'sealed'`);
    let recorded = 0;
    while (await recordNextSegment(test.database)) recorded += 1;
    expect(recorded).to.be.greaterThan(2);
    const [before] = await query<{ points: bigint }>(`SELECT count(DISTINCT data_hash) AS points FROM telemetry_points
      WHERE batch_id IN (SELECT batch_id FROM anchor_batches WHERE status = 'open')`);
    const segments = await query<{ id: bigint }>('SELECT segment_id AS id FROM telemetry_segments WHERE recorded');
    for (const { id } of segments) await query(`TRUNCATE telemetry_segment_${id}`);
    await takeOver();
    const [after] = await query<{ leaves: bigint; places: bigint }>(`SELECT sum(length(leaves) / 32)::int8 AS leaves,
      (SELECT sum(octet_length(devices) / 16) FROM unpacked_leaves WHERE batch_id IN (SELECT batch_id FROM anchor_batches WHERE anchor_mode <> 'per_event'))::int8 AS places
      FROM anchor_batches WHERE anchor_mode <> 'per_event'`);
    expect(after).to.deep.equal({ leaves: before!.points, places: before!.points });
  });

  it('does not record batches that were sealed in time, and forgets those that were sealed later', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    const [{ id } = { id: 0n }] = await query<{ id: bigint }>(
      `UPDATE telemetry_segments SET sealed_at = sealed_at - interval '1 hour' WHERE segment_id =
         (SELECT min(segment_id) FROM telemetry_segments WHERE state = 'sealed') RETURNING segment_id AS id`,
    );
    // All batches were opened after it.
    expect(await recordNextSegment(test.database)).not.to.equal(undefined);
    expect(await query('SELECT FROM open_batch_leaves')).to.have.length(0);
    await query(`UPDATE telemetry_segments SET recorded = false WHERE segment_id = ${id}`);
    await query(`UPDATE anchor_batches SET created_at = created_at - interval '2 hours'`);
    expect(await recordNextSegment(test.database)).not.to.equal(undefined);
    const open = await query(`SELECT FROM anchor_batches WHERE status = 'open'`);
    expect(await query('SELECT FROM open_batch_leaves')).to.have.length(open.length);
    // The writer seals all but one, and completes no further segment.
    const [last] = await query<{ batch_id: string }>(
      `UPDATE anchor_batches SET status = 'sealed' WHERE status = 'open'
         AND batch_id <> (SELECT max(batch_id::text)::uuid FROM open_batch_leaves)
       RETURNING (SELECT max(batch_id::text) FROM open_batch_leaves) AS batch_id`,
    );
    await forgetSealed(test.database);
    expect(await query('SELECT batch_id FROM open_batch_leaves')).to.deep.equal([last]);
    await query(`UPDATE anchor_batches SET status = 'sealed' WHERE status = 'open'`);
    await forgetSealed(test.database);
    expect(await query('SELECT FROM open_batch_leaves')).to.have.length(0);
  });

  it('records and indexes the other segments if one cannot be read', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    await query(`UPDATE anchor_batches SET created_at = created_at - interval '2 hours'`);
    await query(`UPDATE telemetry_segments SET sealed_at = sealed_at - interval '1 hour' WHERE state = 'sealed'`);
    const ids = (
      await query<{ id: bigint }>(`SELECT segment_id AS id FROM telemetry_segments WHERE state = 'sealed' ORDER BY 1`)
    ).map(({ id }) => id);
    expect(ids.length).to.be.greaterThan(2);
    await query(`ALTER TABLE telemetry_segment_${ids[0]!} RENAME TO telemetry_segment_away`);
    const lines: string[] = [];
    const writing = createLogger('error', {}, { write: (line: string) => void lines.push(line) });
    await eachSegment((after) => recordNextSegment(test.database, after), writing);
    await eachSegment((after) => indexNextSegment(test.database, after), writing);
    const done = async () =>
      (
        await query<{ id: bigint }>(`SELECT segment_id AS id FROM telemetry_segments
        WHERE recorded AND state = 'indexed' ORDER BY 1`)
      ).map(({ id }) => id);
    expect(await done()).to.deep.equal(ids.slice(1));
    expect(lines.map((line) => (JSON.parse(line) as { segmentId: string }).segmentId)).to.deep.equal(
      Array(2).fill(`${ids[0]!}`),
    );
    await query(`ALTER TABLE telemetry_segment_away RENAME TO telemetry_segment_${ids[0]!}`);
    await eachSegment((after) => recordNextSegment(test.database, after), writing);
    await eachSegment((after) => indexNextSegment(test.database, after), writing);
    expect(await done()).to.deep.equal(ids);
    expect(lines).to.have.length(2);
    await takeOver();
    await expectClosed();
  });

  it('finds leaves again that were not recorded because the clock was wrong', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    // As if every batch had been opened long after the segments with its points were completed.
    await query(`UPDATE anchor_batches SET created_at = created_at + interval '30 minutes' WHERE status = 'open'`);
    await query(`UPDATE telemetry_segments SET sealed_at = sealed_at - interval '2 minutes' WHERE state <> 'open'`);
    while (await recordNextSegment(test.database));
    expect(await query('SELECT FROM open_batch_leaves')).to.have.length(0);
    await takeOver();
    await expectClosed();
  });

  it('seals the other batches if leaves of one are missing, and does not call the writer closed', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    const open = await query<{ batch_id: string }>(`SELECT batch_id FROM anchor_batches WHERE status = 'open'`);
    expect(open.length).to.be.greaterThan(1);
    const damaged = open[0]!.batch_id;
    for (const { id } of await query<{ id: bigint }>('SELECT segment_id AS id FROM telemetry_segments')) {
      await query(`DELETE FROM telemetry_segment_${id} WHERE batch_id = '${damaged}' AND leaf_index = 0`);
    }
    const isLeft = async () => (await query(`SELECT FROM anchor_batches WHERE status = 'open'`)).length === 1;
    for (let wait = 0; wait < 200 && !(await isLeft()); wait += 1) {
      expect(await takeOverDeadWriters(test.database, logger)).to.equal(0);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    const left = await query<{ batch_id: string }>(`SELECT batch_id FROM anchor_batches WHERE status = 'open'`);
    expect(left).to.deep.equal([{ batch_id: damaged }]);
    expect(await query('SELECT FROM telemetry_writers WHERE closed_at IS NULL')).to.have.length(1);
  });

  it('is not done by a process of an earlier version while chains were continued', async () => {
    expect(await leaveOpenBatches()).to.equal(true);
    const refused = await query('UPDATE telemetry_writers SET epoch = epoch + 1, closed_at = now()').catch(
      (error: Error) => error.message,
    );
    expect(refused).to.match(/has open batches/);
    await takeOver();
    await expectClosed();
  });
});

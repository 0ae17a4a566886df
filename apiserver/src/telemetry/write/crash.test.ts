// Kills a writer with SIGKILL during ingest, repeatedly: no acknowledged point is lost or duplicated, and every batch
// can be proven.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { crashModes, crashPoints } from '../testing/crash-writer.ts';
import { fsck } from '../testing/fsck.ts';
import { testDeviceId } from '../testing/test-devices.ts';
import { takeOverDeadWriters } from './writer-closing.ts';

const kills = 4;

describe('a writer that is killed', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  /**
   * Runs a writer and kills it after the given number of acknowledgements; returns the acknowledged rounds of each
   * client.
   */
  async function runAndKill(firstRound: number, acknowledgements: number): Promise<Map<number, number[]>> {
    const child = spawn(process.execPath, [path.join(import.meta.dirname, '../testing/crash-writer.ts')], {
      env: {
        ...process.env,
        KELLET_TEST_CRASH_DATABASE_URL: test.url,
        KELLET_TEST_FIRST_ROUND: String(firstRound),
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const acknowledged = new Map<number, number[]>();
    let count = 0;
    const lines = createInterface({ input: child.stdout });
    const ended = once(lines, 'close');
    lines.on('line', (line) => {
      const [client, round] = line.split(' ').map(Number) as [number, number];
      acknowledged.set(client, [...(acknowledged.get(client) ?? []), round]);
      count += 1;
      if (count === acknowledgements) child.kill('SIGKILL');
    });
    await Promise.all([once(child, 'exit'), ended]);
    expect(child.signalCode).to.equal('SIGKILL');
    return acknowledged;
  }

  async function takeOver(): Promise<void> {
    // The server releases the lock once it notices that the peer is gone.
    for (let wait = 0; wait < 100; wait += 1) {
      if ((await takeOverDeadWriters(test.database, createLogger('fatal'))) === 1) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    expect.fail('the dead writer could not be taken over');
  }

  it('loses and duplicates no acknowledged point and leaves consistent batches', async () => {
    const acknowledged = new Map<number, Set<number>>();
    for (let kill = 0; kill < kills; kill += 1) {
      for (const [client, rounds] of await runAndKill(kill * 100_000, 150 + kill * 97)) {
        const all = acknowledged.get(client) ?? new Set<number>();
        for (const round of rounds) all.add(round);
        acknowledged.set(client, all);
      }
      await takeOver();
      const report = await fsck(test.database);
      expect(report.problems).to.deep.equal([]);
      expect(report.sealedBatches).to.equal(report.batches);
    }
    for (const client of crashModes.keys()) {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ n: number; copies: bigint }>(
          `SELECT (payload::jsonb -> 'numeric_values' ->> 'n')::int4 AS n, count(*) AS copies
           FROM telemetry_points WHERE device_id = $1 GROUP BY 1`,
          [testDeviceId(client)],
        ),
      );
      const copies = new Map(rows.map((row) => [row.n, Number(row.copies)]));
      for (const round of acknowledged.get(client) ?? []) {
        for (let index = 0; index < crashPoints; index += 1) {
          expect(copies.get(round * crashPoints + index), `client ${client}, round ${round}`).to.equal(1);
        }
      }
      expect(Math.max(...copies.values())).to.equal(1);
    }
    const open = await test.database.system((tx) => tx.query(`SELECT FROM telemetry_segments WHERE state = 'open'`));
    expect(open.rowCount).to.equal(0);
  }).timeout(90_000);
});

// Kills processes that share the work with SIGKILL at any moment: no batch is lost and no coin is spent twice.
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { expect } from 'chai';
import { newId } from '../platform/ids.ts';
import { createVerifier } from '../verifier/service.ts';
import { type Anchoring, newPoint, sealBatch, startAnchoring, type TestBatch } from './testing/anchoring.ts';
import { expectAnchored } from './testing/expect-anchored.ts';

const program = path.join(import.meta.dirname, 'testing/anchor-process.ts');

describe('chain-anchor killed at any moment', function () {
  this.timeout(120_000);
  let anchoring: Anchoring;
  const running = new Set<ChildProcess>();
  before(async () => {
    anchoring = await startAnchoring();
    createVerifier(anchoring.platform).register(anchoring.registry);
    // From here on only separate processes do the work.
    await anchoring.halt();
  });
  after(async () => {
    for (const child of running) await kill(child);
    await anchoring?.stop();
  });

  const start = async (): Promise<ChildProcess> => {
    const child = spawn(process.execPath, [program], {
      env: { ...process.env, ...anchoring.settings, KELLET_LOG_LEVEL: 'silent' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    running.add(child);
    await once(child.stdout, 'data');
    return child;
  };
  const kill = async (child: ChildProcess): Promise<void> => {
    running.delete(child);
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  };
  const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  it('confirms every batch exactly once', async () => {
    const batches: TestBatch[] = [];
    const seal = async (count: number) => {
      for (let i = 0; i < count; i += 1) {
        batches.push(await sealBatch(anchoring.platform.database, [newPoint(newId())]));
      }
    };
    let [first, second] = [await start(), await start()];
    for (let round = 0; round < 6; round += 1) {
      await seal(20);
      // At varying delays after the notification: before, while and after transactions are stored and sent.
      await pause(5 + round * 23);
      await kill(first);
      if (round % 2 === 0) await anchoring.devchain.control('mine', { count: 1 });
      first = second;
      second = await start();
    }
    await expectAnchored(anchoring, batches);
    const { rows } = await anchoring.platform.database.system((tx) =>
      tx.query<{ attempts: number }>('SELECT sum(attempts)::int4 AS attempts FROM anchor_batches'),
    );
    expect(rows[0]!.attempts, 'one transaction per batch').to.equal(batches.length);
  });
});

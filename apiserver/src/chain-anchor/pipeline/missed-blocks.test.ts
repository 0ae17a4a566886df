// In which order blocks are read that the node does not always give; the rest is tested in ../missed-blocks.test.ts.
import { serialiseHeader } from '@kellet/verify';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import type { NodeRpc } from '../headers/node-rpc.ts';
import { MissedBlocks } from './missed-blocks.ts';
import type { Tracker } from './tracker.ts';

describe('blocks that a node does not give', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
  });
  after(() => test.drop());

  it('keep none from being read that it did not give once', async () => {
    const time = Math.floor(Date.now() / 1000);
    const nothing = new Uint8Array(32);
    const raw = serialiseHeader({
      ...{ version: 1, previousHash: nothing, merkleRoot: nothing, time, bits: 0x207fffff, nonce: 0 },
    });
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO block_headers (height, block_hash, header) SELECT height, hash, $1
         FROM unnest('{pruned,late,given}'::text[]) WITH ORDINALITY AS block (hash, height)`,
        [Buffer.from(raw)],
      );
      await tx.query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt) VALUES ('', 'funding', '', '\\x00', 1)`,
      );
    });
    const asked: string[] = [];
    const node = {
      txidsOf: async (hash: string): Promise<string[]> => {
        asked.push(hash);
        const isGiven = hash === 'given' || (hash === 'late' && asked.indexOf(hash) < asked.length - 1);
        if (!isGiven) throw new Error('not available');
        return [];
      },
    } as unknown as NodeRpc;
    const missed = new MissedBlocks({
      ...{ database: test.database, node, tracker: {} as Tracker, logger: createLogger('silent') },
      afterMilliseconds: 0,
    });
    for (let round = 0; round < 6; round += 1) await missed.search().catch(() => undefined);
    expect(asked).to.deep.equal(['pruned', 'late', 'given', 'pruned', 'late', ...Array<string>(3).fill('pruned')]);
  });
});

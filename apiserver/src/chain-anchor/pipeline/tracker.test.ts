// What reports on several attempts of a batch do in an unfortunate order; the rest is tested in faults.test.ts.
import { randomBytes } from 'node:crypto';
import {
  buildBump,
  fromDisplayHex,
  serialiseBump,
  serialiseHeader,
  sha256d,
  toDisplayHex,
  toHex,
} from '@kellet/verify';
import { expect } from 'chai';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { fillTenant } from '../../tenant-data/testing/test-rows.ts';
import type { HeaderChain, StoredHeader } from '../headers/header-chain.ts';
import type { StatusReport } from '../processor/processor-status.ts';
import { Tracker } from './tracker.ts';

describe('of two attempts, one that is reported before the other has lost its block', () => {
  let test: TestDatabase;
  let tracker: Tracker;
  const stored = new Map<number, StoredHeader>();
  before(async () => {
    test = await createTestDatabase();
    const headers = { header: async (height: number) => stored.get(height) } as unknown as HeaderChain;
    tracker = new Tracker(test.database, headers, createLogger('silent'));
  });
  after(() => test.drop());

  /** Adds a block with one transaction to the chain, and returns the report of it. */
  const mine = (txid: string, height: number): StatusReport => {
    const merkleRoot = fromDisplayHex(txid);
    const raw = serialiseHeader({
      ...{ version: 1, previousHash: randomBytes(32), merkleRoot, time: 1_700_000_000, bits: 0x207fffff, nonce: 0 },
    });
    const blockHash = toDisplayHex(sha256d(raw));
    stored.set(height, { height, blockHash, raw });
    const merklePath = toHex(serialiseBump(buildBump(height, [merkleRoot], 0)));
    return { txid, status: 'MINED', blockHash, blockHeight: height, merklePath, competingTxids: [], extraInfo: '' };
  };
  const query = async (text: string, ...values: unknown[]) =>
    (await test.database.system((tx) => tx.query(text, values))).rows;

  it('leaves no coins of the other, if they are splits, that the wallet would wait for', async () => {
    const [first, second] = [randomBytes(32).toString('hex'), randomBytes(32).toString('hex')];
    for (const [index, txid] of [first, second].entries()) {
      await query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt) VALUES ($1, 'split', 'l', '\\x00', $2)`,
        ...[txid, index + 1],
      );
      await query(
        `INSERT INTO wallet_outputs (txid, output_index, public_key, satoshis, state) VALUES ($1, 0, '', 1, 'unmined')`,
        txid,
      );
    }
    const lost = mine(first, 200);
    await tracker.apply(lost, true);
    mine(randomBytes(32).toString('hex'), 200);
    expect(await tracker.apply(mine(second, 201), false)).to.equal('confirmed');
    await tracker.blockOvertaken(first, lost.blockHash);
    expect(await query('SELECT FROM wallet_outputs')).to.deep.equal([]);
  });

  it('gives the batch its proof', async () => {
    await fillTenant(test.database, 'acme');
    const [first, second] = [randomBytes(32).toString('hex'), randomBytes(32).toString('hex')];
    const [batch] = await query(`UPDATE anchor_batches SET status = 'submitted' RETURNING batch_id`);
    const batchId = batch!['batch_id'] as string;
    for (const [index, txid] of [first, second].entries()) {
      await query(
        `INSERT INTO chain_transactions (txid, purpose, batch_id, lease, raw_tx, attempt)
         VALUES ($1, 'anchor', $2, $3, '\\x00', $4)`,
        ...[txid, batchId, batchId, index + 1],
      );
    }
    const proven = async () => (await query('SELECT status, txid, block_height FROM anchor_batches'))[0];
    const lost = mine(first, 100);
    expect(await tracker.apply(lost, true)).to.equal('confirmed');
    expect(await proven()).to.deep.equal({ status: 'confirmed', txid: first, block_height: 100 });
    // The block at 100 is another one now, and the second attempt is in the one after it.
    mine(randomBytes(32).toString('hex'), 100);
    expect(await tracker.apply(mine(second, 101), false)).to.equal('confirmed');
    await tracker.blockOvertaken(first, lost.blockHash);
    expect(await proven()).to.deep.equal({ status: 'confirmed', txid: second, block_height: 101 });
  });
});

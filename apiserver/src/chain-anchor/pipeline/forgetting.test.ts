import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { forgetTransactions } from './forgetting.ts';

describe('forgetting transactions', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const run = async (text: string, values: readonly unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Record<string, unknown>>(text, values))).rows;
  const addTransaction = (txid: string, purpose: string, lease: string, state: string, days: number, batch?: string) =>
    run(
      `INSERT INTO chain_transactions (txid, purpose, batch_id, lease, raw_tx, attempt, state, created_at)
       VALUES ($1, $2, $3, $4, '', 1, $5, now() - $6 * interval '1 day')`,
      [txid, purpose, batch ?? null, lease, state, days],
    );
  const addCoin = (txid: string, index: number, state: string, lease: string | null) =>
    run(
      `INSERT INTO wallet_outputs (txid, output_index, public_key, satoshis, state, leased_by) VALUES ($1, $2, 'k', 1, $3, $4)`,
      [txid, index, state, lease],
    );
  const addBatch = async (): Promise<string> => {
    const batchId = newId();
    await run(
      `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, raw_tx)
       VALUES ('acme', $1, 'merkle', 'confirmed', gen_random_uuid(), 'proof')`,
      [batchId],
    );
    return batchId;
  };
  const transactions = async () =>
    (await run('SELECT txid FROM chain_transactions ORDER BY txid')).map((row) => row['txid']);
  const coins = async () =>
    (await run(`SELECT txid || '/' || output_index AS coin FROM wallet_outputs ORDER BY 1`)).map((row) => row['coin']);

  it('keeps what is young, pending or not spent, and every batch with its proof', async () => {
    const [first, second, third] = [await addBatch(), await addBatch(), await addBatch()];
    await addTransaction('payment', 'funding', '', 'final', 400);
    await addCoin('payment', 0, 'spent', 'a-split');
    await addTransaction('split', 'split', 'a-split', 'final', 300);
    for (const [index, lease] of [first, second, third].entries()) await addCoin('split', index, 'spent', lease);
    await addTransaction('anchor-1', 'anchor', first, 'final', 31, first);
    await addTransaction('anchor-1-before', 'anchor', first, 'dead', 31, first);
    await addTransaction('anchor-2', 'anchor', second, 'final', 29, second);
    await addTransaction('anchor-3', 'anchor', third, 'mined', 31, third);

    expect(await forgetTransactions(test.database, 30)).to.equal(1);
    expect(await transactions()).to.deep.equal(['anchor-2', 'anchor-3', 'payment', 'split']);
    expect(await coins()).to.deep.equal(['payment/0', 'split/1', 'split/2']);

    // The split goes with its last coin; a payment stays, so that it cannot be imported again.
    await run(
      `UPDATE chain_transactions SET state = 'final', created_at = now() - interval '31 days' WHERE purpose = 'anchor'`,
    );
    expect(await forgetTransactions(test.database, 30)).to.equal(2);
    expect(await transactions()).to.deep.equal(['payment']);
    expect(await coins()).to.deep.equal(['payment/0']);
    expect(await run('SELECT FROM anchor_batches WHERE raw_tx IS NOT NULL')).to.have.length(3);
    expect(await forgetTransactions(test.database, 30)).to.equal(0);
  });

  it('continues where a limited round has ended', async () => {
    for (let count = 0; count < 3; count += 1) {
      const batch = await addBatch();
      await addTransaction(`old-${count}`, 'anchor', batch, 'final', 40 - count, batch);
    }
    expect(await forgetTransactions(test.database, 30, 2)).to.equal(2);
    expect(await transactions()).to.deep.equal(['old-2', 'payment']);
    expect(await forgetTransactions(test.database, 30, 2)).to.equal(1);
  });
});

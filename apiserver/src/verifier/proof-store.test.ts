import { expect } from 'chai';
import type { Database, Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { allLeaves, firstLeaves, provenLeaves } from './proof-store.ts';

describe('the leaves of a page of proofs', () => {
  it('are read with few of their batches at once, the first ones with their places', async () => {
    const asked: string[][] = [];
    const query = async (_text: string, values: readonly unknown[]) => {
      asked.push(...values.filter((value) => Array.isArray(value)));
      return { rows: [] };
    };
    const tx = { query } as unknown as Transaction;
    let transactions = 0;
    const database = {
      read: (_tenantId: string, work: (tx: Transaction) => unknown) => {
        transactions += 1;
        return work(tx);
      },
    };
    const ids = Array.from({ length: 140 }, () => newId());
    const places = ids.flatMap((batchId) => [0, 1].map((index) => ({ batchId, index })));
    const pages = await firstLeaves(tx, 'acme', places, provenLeaves);
    expect({ asked: asked.length, transactions }).to.deep.equal({ asked: 1, transactions: 0 });
    for await (const leaves of allLeaves(database as unknown as Database, 'acme', pages)) {
      expect(leaves).to.deep.equal([]);
    }
    expect(asked.flat()).to.deep.equal(ids);
    expect(asked.map(({ length }) => length)).to.deep.equal([64, 64, 12]);
  });
});

import { expect } from 'chai';
import type { Database } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { readLeaves } from './proof-store.ts';

describe('the leaves of a page of proofs', () => {
  it('are read with few of their batches at once', async () => {
    const asked: string[][] = [];
    const query = async (_text: string, values: readonly unknown[]) => {
      asked.push(...values.filter((value) => Array.isArray(value)));
      return { rows: [] };
    };
    const database = { read: (_tenantId: string, work: (tx: unknown) => unknown) => work({ query }) };
    const ids = Array.from({ length: 40 }, () => newId());
    const places = ids.flatMap((batchId) => [0, 1].map((index) => ({ batchId, index })));
    for await (const leaves of readLeaves(database as unknown as Database, 'acme', places)) {
      expect(leaves).to.deep.equal([]);
    }
    expect(asked.flat()).to.deep.equal(ids);
    expect(Math.max(...asked.map(({ length }) => length))).to.equal(16);
  });
});

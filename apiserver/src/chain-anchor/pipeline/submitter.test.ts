// What the submitter does with the batches of a tenant that is being purged; its other work is tested in service.test.ts.
import { randomBytes } from 'node:crypto';
import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { newId } from '../../platform/ids.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../../platform/testing/test-database.ts';
import { beginPurge } from '../../tenants/tenant-store.ts';
import type { Processor } from '../processor/processor.ts';
import { newPoint, sealBatch } from '../testing/anchoring.ts';
import type { Sender } from '../transactions/sender.ts';
import { createWalletKey } from '../wallet/wallet-key.ts';
import { addOutputs } from '../wallet/wallet-store.ts';
import { Submitter } from './submitter.ts';

describe('the submitter, while a tenant is purged', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let submitter: Submitter;
  const key = createWalletKey(randomBytes(32).toString('hex'), 'local');
  const sent: string[] = [];
  const purged = { tenantId: 'purged', isPerEvent: false };
  const living = { tenantId: 'living', isPerEvent: false };
  let batchId: string;

  before(async () => {
    test = await createTestDatabase();
    const processor = { feeRate: async () => ({ satoshis: 1, bytes: 1000 }) } as unknown as Processor;
    const sender = { send: async (txid: string) => void sent.push(txid) } as unknown as Sender;
    submitter = new Submitter({ database: test.database, processor, sender, key, firstPollMilliseconds: 1000 });
    for (const tenantId of ['purged', 'living']) {
      await insertTenant(test.database, tenantId);
      ({ batchId } = await sealBatch(test.database, [newPoint(newId(), tenantId)]));
    }
    const outputs = [0, 1, 2].map((index) => ({ index, satoshis: 5n }));
    await test.database.system(async (tx) => {
      await addOutputs(tx, key.publicKeyHex, 'f'.repeat(64), outputs, 'free');
      await tx.query(`UPDATE tenants SET deleted_at = now(), purge_at = now() WHERE tenant_id = 'purged'`);
    });
  });
  after(() => test.drop());

  const leased = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ leased_by: string }>(`SELECT leased_by FROM wallet_outputs WHERE state = 'leased'`),
    );
    return rows.map((row) => row.leased_by);
  };

  it('lets the purge wait for a transaction under way, and then makes none', async () => {
    const batchOf = async (tenantId: string) => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ batch_id: string }>('SELECT batch_id FROM anchor_batches WHERE tenant_id = $1', [tenantId]),
      );
      return rows[0]!.batch_id;
    };
    const own = await batchOf('purged');
    let purging: Promise<unknown> | undefined;
    let hasBegun = false;
    await test.database.system(async (tx) => {
      expect(await submitter.makeAgain(tx, own)).not.to.equal(undefined);
      purging = test.database.system((other) => beginPurge(other, 'purged', false)).then(() => (hasBegun = true));
      await lockWaitedFor(test.database);
      expect(hasBegun).to.equal(false);
      await tx.query(`UPDATE anchor_batches SET status = 'sealed' WHERE batch_id = $1`, [own]);
    });
    await purging;
    expect(await leased()).to.deep.equal([own]);
    expect(await submitter.submitNext(purged)).to.equal('none');
    expect(await test.database.system((tx) => submitter.makeAgain(tx, own))).to.equal(undefined);
    expect(sent).to.deep.equal([]);
    expect(await submitter.submitNext(living)).to.equal('submitted');
    expect(await leased()).to.have.members([own, batchId]);
    expect(sent).to.have.length(1);
  });
});

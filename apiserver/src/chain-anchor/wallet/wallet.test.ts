// The wallet on a real chain: paid by a third party, split, spent and short of money.
import { buildBeef, fromHex, parseBump, parseTransaction, toHex } from '@kellet/verify';
import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createVerifier } from '../../verifier/service.ts';
import { forgetTransactions } from '../pipeline/forgetting.ts';
import { type Anchoring, newPoint, sealBatch, startAnchoring, type TestBatch } from '../testing/anchoring.ts';
import { expectAnchored, reaches, statusOf } from '../testing/expect-anchored.ts';
import { checkAnchoring } from '../testing/fsck.ts';
import { runWalletCommand } from '../wallet-command.ts';

describe('the wallet', function () {
  this.timeout(60_000);
  let anchoring: Anchoring;
  let address = '';
  const waiting: TestBatch[] = [];
  before(async () => {
    // No funding URL, as on a public network.
    anchoring = await startAnchoring({ KELLET_FUNDING_URL: '' });
    createVerifier(anchoring.platform).register(anchoring.registry);
  });
  after(() => anchoring?.stop());

  const command = async (...args: string[]) => {
    const lines: string[] = [];
    const { config, database, logger } = anchoring.platform;
    const code = await runWalletCommand(args, { config, database, logger, write: (line) => lines.push(line) });
    return { code, text: lines.join('\n') };
  };
  const pay = async (to: string, satoshis: number) => {
    const paid = (await anchoring.devchain.control('fund', { address: to, satoshis })) as {
      raw_tx: string;
      bump: string;
    };
    return toHex(buildBeef(fromHex(paid.raw_tx), parseBump(fromHex(paid.bump))));
  };
  const metric = async (name: string) => {
    const text = await anchoring.platform.metrics.metrics();
    return Number(new RegExp(`^${name.replace(/[{}"]/g, '\\$&')} (\\S+)$`, 'm').exec(text)?.[1]);
  };

  it('holds batches without money and logs it', async () => {
    for (let i = 0; i < 3; i += 1) waiting.push(await sealBatch(anchoring.platform.database, [newPoint(newId())]));
    await new Promise((resolve) => setTimeout(resolve, 300));
    for (const { batchId } of waiting) expect(await statusOf(anchoring, batchId)).to.equal('sealed');
    expect(await metric('kellet_anchor_wallet_low')).to.equal(1);
    expect(await metric('kellet_anchor_batches{status="sealed"}')).to.equal(3);
    expect(await checkAnchoring(anchoring.platform.database)).to.deep.equal([]);
  });

  it('prints its address', async () => {
    const { code, text } = await command('address');
    expect(code).to.equal(0);
    expect(text).to.match(/^[mn][1-9A-HJ-NP-Za-km-z]{25,34}$/);
    address = text;
  });

  it('rejects a payment to someone else and an invalid payment', async () => {
    const foreign = await pay('1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2', 5000);
    expect(await command('import', foreign)).to.deep.include({
      code: 1,
      text: `the transaction pays nothing to ${address}`,
    });
    expect((await command('import', 'abcd')).code).to.equal(1);
    expect((await command('import')).code).to.equal(2);
    expect((await command('spend')).code).to.equal(2);
  });

  it('rejects a payment in a block that the header source does not have', async () => {
    const payment = await pay(address, 5000);
    await anchoring.devchain.control('reorg', { depth: 1 });
    // The payment is in another block now; its old path proves nothing.
    await eventually(async () => (await command('import', payment)).code === 1);
  });

  it('imports a payment, splits it and spends no coin before its split is mined', async () => {
    const payment = await pay(address, 2000);
    expect(await command('import', payment)).to.deep.equal({ code: 0, text: '1 new coins' });
    expect(await command('import', payment)).to.deep.equal({ code: 0, text: '0 new coins' });
    await eventually(async () => /unmined +3[01] coins/.test((await command('balance')).text), 10_000);
    await new Promise((resolve) => setTimeout(resolve, 300));
    for (const { batchId } of waiting) expect(await statusOf(anchoring, batchId)).to.equal('sealed');
    await anchoring.devchain.control('mine', { count: 1 });
    for (const batch of waiting) await reaches(anchoring, batch, 'seen');
    await expectAnchored(anchoring, waiting);
    const { text } = await command('balance');
    expect(text).to.match(/^spent +4 coins +2003 satoshis$/m);
    expect(text).to.match(/^free +28 coins/m);
    expect(await metric('kellet_anchor_wallet_low')).to.equal(0);
  });

  it('splits on command', async () => {
    const { code, text } = await command('split', '5');
    expect(code).to.equal(0);
    expect(text).to.match(/^5 coins in [0-9a-f]{64}/);
    expect(await command('split', '5')).to.deep.equal({ code: 1, text: 'no coin can be split' });
    await anchoring.devchain.control('mine', { count: 1 });
    await eventually(async () => /^unmined +0 coins/m.test((await command('balance')).text), 10_000);
    expect(await checkAnchoring(anchoring.platform.database)).to.deep.equal([]);
  });

  it('splits again when the stock runs low, also when splits are rejected', async () => {
    await anchoring.devchain.control('faults', { reject_next: 100_000 });
    const batches: TestBatch[] = [];
    for (let i = 0; i < 25; i += 1) batches.push(await sealBatch(anchoring.platform.database, [newPoint(newId())]));
    await eventually(async () => {
      const { rows } = await anchoring.platform.database.system((tx) =>
        tx.query(`SELECT FROM chain_transactions WHERE purpose = 'split' AND attempt > 1`),
      );
      return rows.length > 0;
    }, 10_000);
    await anchoring.devchain.clearFaults();
    await expectAnchored(anchoring, batches);
    await eventually(async () => {
      await anchoring.devchain.control('mine', { count: 1 });
      const isLow = (await metric('kellet_anchor_wallet_low')) === 1;
      return !isLow && /^unmined +0 coins/m.test((await command('balance')).text);
    }, 20_000);
    expect(await checkAnchoring(anchoring.platform.database)).to.deep.equal([]);
  });

  describe('does not revive spent coins when it imports', () => {
    const run = (text: string, ...values: unknown[]) =>
      anchoring.platform.database.system((tx) => tx.query<Record<string, unknown>>(text, values));
    /** Returns a split of the wallet with a spent coin, in the form in which it is imported. */
    const splitWithSpentCoins = async () => {
      const { rows } = await run(
        `SELECT txid, raw_tx, bump FROM chain_transactions s WHERE purpose = 'split' AND bump IS NOT NULL
           AND EXISTS (SELECT FROM wallet_outputs o JOIN anchor_batches b ON b.batch_id::text = o.leased_by
             WHERE o.txid = s.txid AND o.state = 'spent') LIMIT 1`,
      );
      const { txid, raw_tx: raw, bump } = rows[0] as { txid: string; raw_tx: Buffer; bump: Buffer };
      return { txid, beef: toHex(buildBeef(raw, parseBump(bump))), outputs: parseTransaction(raw).outputs.length };
    };
    const forget = async () => {
      await run(
        `UPDATE chain_transactions SET state = 'final', created_at = now() - interval '99 days' WHERE state = 'mined'`,
      );
      while ((await forgetTransactions(anchoring.platform.database, 30)) > 0);
    };
    const coinsOf = async (txid: string) =>
      (await run('SELECT state FROM wallet_outputs WHERE txid = $1', txid)).rows.map((row) => row['state']);
    let first: Awaited<ReturnType<typeof splitWithSpentCoins>>;
    before(async () => {
      await anchoring.halt();
      first = await splitWithSpentCoins();
    });

    it('its own split, some of whose coins are forgotten', async () => {
      await forget();
      const left = await coinsOf(first.txid);
      expect(left.length).to.be.lessThan(first.outputs);
      expect(await command('import', first.beef)).to.deep.equal({ code: 0, text: '0 new coins' });
      expect(await coinsOf(first.txid)).to.deep.equal(left);
    });

    it('its own split, which is forgotten itself', async () => {
      await run('DELETE FROM wallet_outputs WHERE txid = $1', first.txid);
      await run('DELETE FROM chain_transactions WHERE txid = $1', first.txid);
      const { code, text } = await command('import', first.beef);
      expect(code).to.equal(1);
      expect(text).to.contain('spends a coin of the wallet itself');
      expect(await coinsOf(first.txid)).to.deep.equal([]);
    });

    it('but imports a split that a restored database does not know yet', async () => {
      const { rows } = await run(
        `SELECT s.txid, s.lease, s.raw_tx, s.bump FROM chain_transactions s JOIN wallet_outputs o ON o.leased_by = s.lease
         WHERE s.purpose = 'split' AND s.bump IS NOT NULL LIMIT 1`,
      );
      const made = rows[0] as { txid: string; lease: string; raw_tx: Buffer; bump: Buffer };
      await run('DELETE FROM wallet_outputs WHERE txid = $1', made.txid);
      await run('DELETE FROM chain_transactions WHERE lease = $1', made.lease);
      await run(`UPDATE wallet_outputs SET state = 'free', leased_by = NULL WHERE leased_by = $1`, made.lease);
      const beef = toHex(buildBeef(made.raw_tx, parseBump(made.bump)));
      const { code, text } = await command('import', beef);
      expect([code, text]).to.deep.equal([0, `${parseTransaction(made.raw_tx).outputs.length} new coins`]);
    });
  });
});

describe('chain-anchor without its settings', function () {
  this.timeout(60_000);
  const cases: [what: string, missing: Record<string, string>, configured: number][] = [
    ['a wallet key', { KELLET_WALLET_KEY: '' }, 0],
    ['a processor', { KELLET_ARC_URL: '' }, 0],
  ];
  for (const [what, missing, configured] of cases) {
    it(`keeps batches sealed without ${what} until it is configured`, async () => {
      const anchoring = await startAnchoring(missing);
      try {
        createVerifier(anchoring.platform).register(anchoring.registry);
        const batch = await sealBatch(anchoring.platform.database, [newPoint(newId())]);
        await new Promise((resolve) => setTimeout(resolve, 300));
        expect(await statusOf(anchoring, batch.batchId)).to.equal('sealed');
        expect(await anchoring.platform.metrics.metrics()).to.include(`kellet_anchor_configured ${configured}`);
        const equipped = anchoring.another({
          KELLET_WALLET_KEY: '11'.repeat(32),
          KELLET_ARC_URL: anchoring.devchain.url,
        });
        await equipped.start!();
        try {
          await expectAnchored(anchoring, [batch]);
        } finally {
          await equipped.stop!();
        }
      } finally {
        await anchoring.stop();
      }
    });
  }

  it('confirms nothing without a header source and everything once it has one', async () => {
    const anchoring = await startAnchoring({ KELLET_HEADERS_URL: '', KELLET_FUNDING_URL: '' });
    try {
      createVerifier(anchoring.platform).register(anchoring.registry);
      const equipped = anchoring.another({
        KELLET_HEADERS_URL: anchoring.devchain.url,
        KELLET_FUNDING_URL: `${anchoring.devchain.url}/dev/fund`,
      });
      await equipped.start!();
      const first = await sealBatch(anchoring.platform.database, [newPoint(newId())]);
      await reaches(anchoring, first, 'seen');
      await equipped.stop!();
      await anchoring.devchain.control('mine', { count: 1 });
      await new Promise((resolve) => setTimeout(resolve, 1000));
      expect(await statusOf(anchoring, first.batchId)).to.equal('seen');
      const again = anchoring.another({ KELLET_HEADERS_URL: anchoring.devchain.url });
      await again.start!();
      await expectAnchored(anchoring, [first]);
      await again.stop!();
    } finally {
      await anchoring.stop();
    }
  });
});

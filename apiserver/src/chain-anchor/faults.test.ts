// Tests every fault that processor, network and broker can cause. Each test ends with every batch confirmed exactly
// once.
import { expect } from 'chai';
import { Database } from '../platform/database/database.ts';
import { Broker } from '../platform/events/broker.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { TcpProxy } from '../platform/testing/test-tcp-proxy.ts';
import { createVerifier } from '../verifier/service.ts';
import { HeaderChain, storedTip } from './headers/header-chain.ts';
import { ChainTracks } from './headers/header-source.ts';
import { rulesOf } from './headers/reorganisation.ts';
import { Tracker } from './pipeline/tracker.ts';
import { type Anchoring, newPoint, sealBatch, startAnchoring, type TestBatch } from './testing/anchoring.ts';
import { expectAnchored, reaches } from './testing/expect-anchored.ts';
import { startTestChain } from './testing/test-chain.ts';
import { readTransaction } from './transactions/anchor-store.ts';

describe('chain-anchor under faults', function () {
  this.timeout(400_000);
  let anchoring: Anchoring;
  before(async () => {
    anchoring = await startAnchoring();
    createVerifier(anchoring.platform).register(anchoring.registry);
  });
  after(() => anchoring?.stop());
  afterEach(() => anchoring?.devchain.clearFaults());

  const seal = async (count = 1): Promise<TestBatch[]> => {
    const batches: TestBatch[] = [];
    for (let i = 0; i < count; i += 1) {
      batches.push(await sealBatch(anchoring.platform.database, [newPoint(newId()), newPoint(newId())]));
    }
    return batches;
  };
  const rowOf = async ({ batchId }: TestBatch) => {
    const { rows } = await anchoring.platform.database.system((tx) =>
      tx.query<{
        attempts: number;
        error: string;
        block_hash: string | null;
        block_height: number | null;
        txid: string;
      }>('SELECT attempts, error, block_hash, block_height, txid FROM anchor_batches WHERE batch_id = $1', [batchId]),
    );
    return rows[0]!;
  };
  /** Returns how many blocks a reorganisation must replace to reach the batch's block. */
  const depthOf = async (batch: TestBatch) =>
    ((await anchoring.devchain.state())['height'] as number) - (await rowOf(batch)).block_height! + 1;
  const coins = async (state: string) => {
    const { rows } = await anchoring.platform.database.system((tx) =>
      tx.query<{ count: number }>('SELECT count(*)::int4 AS count FROM wallet_outputs WHERE state = $1', [state]),
    );
    return rows[0]!.count;
  };

  it('works without callbacks', async () => {
    await anchoring.devchain.control('faults', { drop_callbacks: true });
    await expectAnchored(anchoring, await seal(5));
  });

  it('accepts repeated callbacks', async () => {
    await anchoring.devchain.control('faults', { duplicate_callbacks: 4 });
    await expectAnchored(anchoring, await seal(5));
  });

  it('waits for an unavailable processor', async () => {
    await anchoring.devchain.control('faults', { unavailable_ms: 1500 });
    const batches = await seal(3);
    for (const batch of batches) await reaches(anchoring, batch, 'submitted');
    await expectAnchored(anchoring, batches);
    for (const batch of batches) expect((await rowOf(batch)).attempts).to.equal(1);
  });

  it('retries a rejected transaction with the same coin', async () => {
    const lost = await coins('lost');
    await anchoring.devchain.control('faults', { reject_next: 3 });
    const batches = await seal(2);
    for (const batch of batches) await reaches(anchoring, batch, 'seen');
    await expectAnchored(anchoring, batches);
    const attempts = await Promise.all(batches.map(async (batch) => (await rowOf(batch)).attempts));
    expect(attempts[0]! + attempts[1]!).to.equal(2 + 3);
    expect(await coins('lost')).to.equal(lost);
  });

  it('uses another coin once the first is spent elsewhere', async () => {
    const lost = await coins('lost');
    await anchoring.devchain.control('faults', { double_spend_next: 1 });
    const [batch] = await seal(1);
    await eventually(
      async () => (await rowOf(batch!)).error.includes('another transaction spends the same coin'),
      10_000,
    );
    // The attempt count must not change before the other transaction is in a block.
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect((await rowOf(batch!)).attempts).to.equal(1);
    await expectAnchored(anchoring, [batch!]);
    expect((await rowOf(batch!)).attempts).to.equal(2);
    expect(await coins('lost')).to.equal(lost + 1);
  });

  it('resubmits an orphan and copes when its parents turn up after all', async () => {
    await anchoring.devchain.control('faults', { orphan_next: 1 });
    const [batch] = await seal(1);
    await eventually(async () => (await rowOf(batch!)).attempts === 2, 10_000);
    await reaches(anchoring, batch!, 'seen');
    await anchoring.devchain.clearFaults();
    await expectAnchored(anchoring, [batch!]);
  });

  it('moves a proof to the block that replaced its own', async () => {
    const batches = await seal(3);
    await expectAnchored(anchoring, batches);
    const before = await rowOf(batches[0]!);
    await anchoring.devchain.control('reorg', { depth: await depthOf(batches[0]!) });
    await eventually(async () => {
      const { block_hash } = await rowOf(batches[0]!);
      return block_hash !== null && block_hash !== before.block_hash;
    }, 10_000);
    await expectAnchored(anchoring, batches);
    expect((await rowOf(batches[0]!)).txid).to.equal(before.txid);
  });

  it('withdraws a proof whose block was reorganised out until the transaction is mined again', async () => {
    const batches = await seal(2);
    await expectAnchored(anchoring, batches);
    await anchoring.devchain.control('faults', { pause_mining: true });
    const depth =
      ((await anchoring.devchain.state())['height'] as number) - (await rowOf(batches[0]!)).block_height! + 1;
    await anchoring.devchain.control('reorg', { depth });
    for (const batch of batches) await reaches(anchoring, batch, 'seen');
    expect(await rowOf(batches[0]!)).to.include({ block_hash: null, block_height: null });
    await anchoring.devchain.clearFaults();
    await expectAnchored(anchoring, batches);
  });

  it('withdraws also the proof of a transaction that was final, after a reorganisation of many blocks', async () => {
    const batches = await seal(1);
    await expectAnchored(anchoring, batches);
    await anchoring.platform.database.system((tx) =>
      tx.query(`UPDATE chain_transactions SET state = 'final' WHERE batch_id = $1`, [batches[0]!.batchId]),
    );
    await anchoring.devchain.control('mine', { count: 25 });
    await anchoring.devchain.control('faults', { pause_mining: true });
    await eventually(async () => {
      const { height } = await anchoring.devchain.state();
      return (await anchoring.platform.database.systemRead(storedTip)) === height;
    }, 10_000);
    await anchoring.devchain.control('reorg', { depth: await depthOf(batches[0]!) });
    await reaches(anchoring, batches[0]!, 'seen');
    await anchoring.devchain.clearFaults();
    await expectAnchored(anchoring, batches);
  });

  it('keeps a proof while its block is among the headers, although the processor calls it stale', async () => {
    const { database, logger } = anchoring.platform;
    const batches = await seal(1);
    await expectAnchored(anchoring, batches);
    const { txid, block_hash: blockHash } = await rowOf(batches[0]!);
    const headers = new HeaderChain(database, new ChainTracks(anchoring.devchain.url), rulesOf('local'), logger);
    const tracker = new Tracker(database, headers, logger);
    const stale = { txid, status: 'MINED_IN_STALE_BLOCK', merklePath: '', competingTxids: [], extraInfo: '' } as const;
    for (const state of ['mined', 'final']) {
      await database.system((tx) =>
        tx.query('UPDATE chain_transactions SET state = $2 WHERE txid = $1', [txid, state]),
      );
      for (const named of ['', blockHash!]) {
        for (const isCurrent of [true, false]) {
          const report = { ...stale, blockHash: named, blockHeight: 0 };
          expect(await tracker.apply(report, isCurrent), state).to.equal('ignored');
        }
      }
    }
    await expectAnchored(anchoring, batches);
  });

  it('proves no transaction by the path of another one', async () => {
    const { database, logger } = anchoring.platform;
    const [mined] = await seal(1);
    await expectAnchored(anchoring, [mined!]);
    const { txid, block_hash: blockHash, block_height: blockHeight } = await rowOf(mined!);
    const { rows } = await database.system((tx) =>
      tx.query<{ bump: Buffer }>('SELECT bump FROM chain_transactions WHERE txid = $1', [txid]),
    );
    const path = { blockHash: blockHash!, blockHeight: blockHeight!, merklePath: rows[0]!.bump.toString('hex') };
    await anchoring.devchain.control('faults', { pause_mining: true });
    const [pending] = await seal(1);
    await reaches(anchoring, pending!, 'seen');
    const headers = new HeaderChain(database, new ChainTracks(anchoring.devchain.url), rulesOf('local'), logger);
    const tracker = new Tracker(database, headers, logger);
    const read = await database.systemRead(async (tx) => readTransaction(tx, (await rowOf(pending!)).txid));
    const report = { txid, status: 'MINED', ...path, competingTxids: [], extraInfo: '' } as const;
    expect(await tracker.apply(report, true, read)).to.equal('unproven');
    expect(await rowOf(pending!)).to.include({ block_hash: null });
    await anchoring.devchain.clearFaults();
    await expectAnchored(anchoring, [pending!]);
  });

  it('anchors a batch again whose transaction lost its coin in a reorganisation', async () => {
    const batches = await seal(2);
    for (const batch of batches) await reaches(anchoring, batch, 'seen');
    await anchoring.devchain.control('mine', { count: 1 });
    for (const batch of batches) await reaches(anchoring, batch, 'confirmed');
    await anchoring.devchain.control('reorg', { depth: 1, double_spends: 1 });
    await eventually(async () => {
      const rows = await Promise.all(batches.map(rowOf));
      return rows.some(({ attempts }) => attempts > 1);
    }, 20_000);
    await expectAnchored(anchoring, batches);
  });

  it('shares the work between processes', async () => {
    const others = [anchoring.another(), anchoring.another()];
    for (const other of others) await other.start!();
    const batches = await seal(40);
    await expectAnchored(anchoring, batches);
    for (const batch of batches) expect((await rowOf(batch)).attempts).to.equal(1);
    for (const other of others) await other.stop!();
  });

  it("confirms nothing that only another chain's headers could confirm", async () => {
    const own = await startAnchoring();
    const elsewhere = await startTestChain();
    createVerifier(own.platform).register(own.registry);
    const settled = await sealBatch(own.platform.database, [newPoint(newId())]);
    await expectAnchored(own, [settled]);
    await own.halt();
    // Both chains have blocks at the batches' heights.
    const { height } = (await own.devchain.state()) as { height: number };
    const { height: other } = (await elsewhere.state()) as { height: number };
    await elsewhere.control('mine', { count: height + 5 - other });
    const batch = await sealBatch(own.platform.database, [newPoint(newId())]);
    const confused = own.another({ KELLET_HEADERS_URL: elsewhere.url });
    await confused.start!();
    await reaches(own, batch, 'seen');
    await own.devchain.control('mine', { count: 1 });
    const error = async () => {
      const { rows } = await own.platform.database.system((tx) =>
        tx.query<{ error: string }>('SELECT error FROM anchor_batches WHERE batch_id = $1', [batch.batchId]),
      );
      return rows[0]!.error;
    };
    await eventually(async () => (await error()).includes('no independent header confirms'), 10_000);
    // An earlier proof does not hold on that chain either.
    await reaches(own, settled, 'seen');
    await confused.stop!();
    // The branch with more work wins, so the right chain returns once it has more.
    await own.devchain.control('mine', { count: 20 });
    const sound = own.another();
    await sound.start!();
    await expectAnchored(own, [settled, batch]);
    await sound.stop!();
    await elsewhere.stop();
    await own.stop();
  });

  it('works without the broker', async () => {
    await anchoring.halt();
    const broker = new Broker('nats://127.0.0.1:1', anchoring.platform.logger);
    const alone = anchoring.another({}, broker);
    try {
      await alone.start!();
      await expectAnchored(anchoring, await seal(3));
    } finally {
      await alone.stop!();
      await broker.close();
    }
  });

  it('resumes by itself after the database host has vanished', async () => {
    const own = await startAnchoring();
    createVerifier(own.platform).register(own.registry);
    const url = own.settings['KELLET_DATABASE_URL']!;
    const proxy = await TcpProxy.before(url);
    const bounds = { loopMilliseconds: 1000, heartbeatMilliseconds: 300 };
    const database = new Database(proxy.through(url), createLogger('silent'), bounds);
    await own.halt();
    const alone = own.another({}, undefined, database);
    await alone.start!();
    try {
      const sealTwo = async () => {
        const point = () => newPoint(newId());
        return [await sealBatch(own.platform.database, [point()]), await sealBatch(own.platform.database, [point()])];
      };
      await expectAnchored(own, await sealTwo());
      proxy.silence();
      const during = await sealTwo();
      await new Promise((resolve) => setTimeout(resolve, 4000));
      proxy.restore();
      await expectAnchored(own, during);
      // Only the currently open connections are dead.
      proxy.silenceOpen();
      await expectAnchored(own, await sealTwo());
    } finally {
      proxy.restore();
      await alone.stop!();
      await database.close();
      await proxy.close();
      await own.stop();
    }
  });
});

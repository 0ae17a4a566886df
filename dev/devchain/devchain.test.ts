import { MerklePath, Transaction } from '@bsv/sdk';
import { checkHeaderChain, fromHex, parseHeader, toDisplayHex } from '@kellet/verify';
import { expect } from 'chai';
import { Devchain, INITIAL_BLOCKS } from './devchain.ts';
import { addressScript } from './miner.ts';
import { readSubmissions, type Submission } from './submission.ts';
import { type MemoryJournal, memoryJournal } from './testing/memory-journal.ts';
import { type Spendable, TestWallet } from './testing/wallet.ts';

const read = (transaction: Transaction): Submission =>
  readSubmissions(Uint8Array.from(transaction.toBinary())).transactions[0]!;

describe('devchain', () => {
  const wallet = new TestWallet();
  let journal: MemoryJournal;
  let devchain: Devchain;
  let coins: Spendable[];

  beforeEach(() => {
    journal = memoryJournal();
    devchain = new Devchain(journal, [], () => 0);
    coins = fund(4, 1000);
  });

  // After every test, another devchain that reads the same journal has the same state, and headers, blocks and money
  // are consistent.
  afterEach(() => {
    expect(snapshot(new Devchain(memoryJournal(), journal.read(), () => 0))).to.deep.equal(snapshot(devchain));
    checkChain(devchain);
  });

  function fund(outputs: number, satoshis: number): Spendable[] {
    const output = { satoshis: BigInt(satoshis), lockingScript: addressScript(wallet.address) };
    const { record } = devchain.fund(Array.from({ length: outputs }, () => output));
    const source = Transaction.fromBinary([...record.raw]);
    return Array.from({ length: outputs }, (_, index) => ({ source, index }));
  }

  const submit = (transaction: Transaction) => devchain.submit(read(transaction), undefined);
  const status = (transaction: Transaction) => devchain.ledger.transaction(transaction.id('hex'))!.status;
  const record = (transaction: Transaction) => devchain.ledger.transaction(transaction.id('hex'))!;

  it('continues a chain of which it knows only the headers', () => {
    const { chain: before } = devchain.ledger;
    const headers = Array.from({ length: before.tip.height + 1 }, (_, height) => before.at(height)!.header);
    const next = new Devchain(memoryJournal(), [], () => 0, headers);
    const { chain } = next.ledger;
    expect(chain.tip.height).to.equal(before.tip.height + INITIAL_BLOCKS);
    const all = chain.latestHeaders(chain.tip.height + 1);
    expect(all.slice(0, headers.length)).to.deep.equal(headers);
    checkHeaderChain(all.map((raw, height) => ({ height, raw })));
    // It has money of its own.
    next.fund([{ satoshis: 1000n, lockingScript: addressScript(wallet.address) }]);
  });

  it('starts with mature coins, and pays from them', () => {
    expect(devchain.ledger.chain.tip.height).to.equal(INITIAL_BLOCKS + 1);
    expect(devchain.ledger.chain.coin(`${coins[0]!.source.id('hex')}:3`)!.satoshis).to.equal(1000n);
  });

  it('mines submitted transactions with a valid Merkle path', async () => {
    const anchors = await Promise.all(coins.slice(0, 3).map((coin) => wallet.anchor(coin)));
    for (const anchor of anchors) expect(submit(anchor).status).to.equal('SEEN_ON_NETWORK');
    const block = devchain.mine();
    expect(block.txids.slice(1)).to.have.members(anchors.map((anchor) => anchor.id('hex')));
    const root = toDisplayHex(parseHeader(block.header).merkleRoot);
    for (const anchor of anchors) {
      expect(record(anchor)).to.include({ status: 'MINED', blockHash: block.hash, blockHeight: block.height });
      const path = MerklePath.fromHex(devchain.ledger.chain.bump(block, anchor.id('hex')));
      expect(path.computeRoot(anchor.id('hex'))).to.equal(root);
      expect(path.blockHeight).to.equal(block.height);
    }
  });

  it('pays fees to the miner, preserving the money supply', async () => {
    submit(await wallet.anchor(coins[0]!, { fee: 7 }));
    const coinbase = devchain.ledger.transaction(devchain.mine().txids[0]!)!;
    expect(coinbase.transaction.outputs[0]!.satoshis).to.equal(5_000_000_007n);
  });

  it('returns the current status for a repeated submission', async () => {
    const anchor = await wallet.anchor(coins[0]!);
    submit(anchor);
    devchain.mine();
    expect(submit(anchor).status).to.equal('MINED');
    expect(devchain.ledger.mempool.size).to.equal(0);
  });

  it('mines a chain of transactions in one block, parents first', async () => {
    const parent = await wallet.anchor(coins[0]!);
    const child = await wallet.anchor({ source: parent, index: 1 });
    submit(parent);
    expect(submit(child).status).to.equal('SEEN_ON_NETWORK');
    expect(devchain.mine().txids.slice(1)).to.deep.equal([parent.id('hex'), child.id('hex')]);
  });

  it('keeps an orphan until its parent arrives', async () => {
    const parent = await wallet.anchor(coins[0]!);
    const child = await wallet.anchor({ source: parent, index: 1 });
    expect(submit(child).status).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    devchain.mine();
    expect(status(child)).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    submit(parent);
    expect(status(child)).to.equal('SEEN_ON_NETWORK');
  });

  it('validates an orphan when its parent arrives', async () => {
    const parent = await wallet.anchor(coins[0]!);
    const child = await wallet.anchor({ source: parent, index: 1 }, { fee: 0 });
    expect(submit(child).status).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    submit(parent);
    expect(record(child)).to.include({ status: 'REJECTED', pool: 'none' });
    expect(record(child).extraInfo).to.contain('fee is too low');
  });

  it('accepts the first of two spends, and marks both as competing', async () => {
    const [first, second] = [await wallet.anchor(coins[0]!, { mark: 1 }), await wallet.anchor(coins[0]!, { mark: 2 })];
    submit(first);
    expect(submit(second)).to.deep.include({ status: 'DOUBLE_SPEND_ATTEMPTED', competing: [first.id('hex')] });
    expect(record(first)).to.deep.include({ status: 'DOUBLE_SPEND_ATTEMPTED', competing: [second.id('hex')] });
    devchain.mine();
    expect(record(first)).to.include({ status: 'MINED', extraInfo: 'previously double spend attempted' });
    expect(record(second)).to.include({ status: 'REJECTED', extraInfo: 'double spend attempted', pool: 'none' });
  });

  it('treats a spend of an already spent output as an orphan', async () => {
    submit(await wallet.anchor(coins[0]!, { mark: 1 }));
    devchain.mine();
    expect(submit(await wallet.anchor(coins[0]!, { mark: 2 })).status).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
  });

  it('mines a transaction again in another block after a reorganisation', async () => {
    const anchor = await wallet.anchor(coins[0]!);
    submit(anchor);
    const before = devchain.mine();
    devchain.mine();
    const { newTip, stale } = devchain.reorganise(2, 0);
    expect(newTip.height).to.equal(before.height + 2);
    expect(stale.map((block) => block.height)).to.deep.equal([before.height + 1, before.height]);
    expect(record(anchor)).to.include({ status: 'MINED', blockHeight: before.height });
    expect(record(anchor).blockHash).not.to.equal(before.hash);
    expect(devchain.ledger.chain.at(before.height)!.hash).to.equal(record(anchor).blockHash);
  });

  it('leaves it in a stale block while mining is paused', async () => {
    const anchor = await wallet.anchor(coins[0]!);
    submit(anchor);
    const before = devchain.mine();
    devchain.faults.merge({ pause_mining: true });
    devchain.reorganise(1, 0);
    expect(record(anchor)).to.include({ status: 'MINED_IN_STALE_BLOCK', blockHash: before.hash, pool: 'mempool' });
    const { source, index } = coins[0]!;
    const coin = devchain.ledger.chain.coin(`${source.id('hex')}:${index}`)!;
    expect(coin).to.deep.include({ satoshis: 1000n, height: before.height - 1, isCoinbase: false });
    devchain.mine();
    expect(record(anchor)).to.include({ status: 'MINED', blockHeight: before.height + 2 });
  });

  it('loses it permanently if the new blocks spend its inputs', async () => {
    const parent = await wallet.anchor(coins[0]!);
    const child = await wallet.anchor({ source: parent, index: 1 });
    const other = await wallet.anchor(coins[1]!);
    for (const transaction of [parent, other]) submit(transaction);
    const before = devchain.mine();
    submit(child);
    devchain.reorganise(1, 1);
    expect(record(parent)).to.include({ status: 'MINED_IN_STALE_BLOCK', blockHash: before.hash, pool: 'none' });
    expect(status(child)).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    expect(status(other)).to.equal('MINED');
    devchain.mine();
    expect(status(parent)).to.equal('MINED_IN_STALE_BLOCK');
  });

  it('survives a reorganisation of its own payments', () => {
    for (let i = 0; i < 3; i++) devchain.mine();
    const more = fund(2, 500);
    devchain.reorganise(5, 0);
    expect(status(coins[0]!.source)).to.equal('MINED');
    expect(status(more[0]!.source)).to.equal('MINED');
  });

  it('rejects the next transactions on request, without spending their inputs', async () => {
    devchain.faults.merge({ reject_next: 1 });
    const [first, second] = [await wallet.anchor(coins[0]!, { mark: 1 }), await wallet.anchor(coins[0]!, { mark: 2 })];
    expect(submit(first).status).to.equal('REJECTED');
    expect(submit(first).status).to.equal('REJECTED');
    expect(submit(second).status).to.equal('SEEN_ON_NETWORK');
  });

  it('makes a competitor win on request', async () => {
    devchain.faults.merge({ double_spend_next: 1 });
    const anchor = await wallet.anchor(coins[0]!);
    expect(submit(anchor).status).to.equal('DOUBLE_SPEND_ATTEMPTED');
    const [competitor] = record(anchor).competing;
    devchain.mine();
    expect(record(anchor)).to.include({ status: 'REJECTED', extraInfo: 'double spend attempted' });
    const winner = devchain.ledger.transaction(competitor!)!;
    expect(winner.status).to.equal('MINED');
    const { previousTxid, previousOutputIndex } = winner.transaction.inputs[0]!;
    expect([toDisplayHex(previousTxid), previousOutputIndex]).to.deep.equal([coins[0]!.source.id('hex'), 0]);
  });

  it('holds orphans on request until the faults are cleared', async () => {
    devchain.faults.merge({ orphan_next: 1 });
    const anchor = await wallet.anchor(coins[0]!);
    expect(submit(anchor).status).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    devchain.mine();
    expect(status(anchor)).to.equal('SEEN_IN_ORPHAN_MEMPOOL');
    devchain.clearFaults();
    devchain.mine();
    expect(status(anchor)).to.equal('MINED');
  });

  it('rejects spending an immature coinbase', async () => {
    journal = memoryJournal();
    journal.append([{ type: 'created', at: '2026-01-01T00:00:00Z', miner_key: wallet.key.toHex() }]);
    devchain = new Devchain(journal, journal.read(), () => 0);
    const { chain } = devchain.ledger;
    const coinbaseAt = (height: number) => devchain.ledger.transaction(chain.at(height)!.txids[0]!)!;
    const spend = (height: number) =>
      wallet.anchor({ source: Transaction.fromBinary([...coinbaseAt(height).raw]), index: 0 });
    const tooYoung = await spend(3);
    expect(submit(tooYoung)).to.include({ status: 'REJECTED', extraInfo: 'bad-txns-premature-spend-of-coinbase' });
    expect(submit(await spend(2)).status).to.equal('SEEN_ON_NETWORK');
  });

  it('resolves a wait once the status is reached or the time is up', async () => {
    const anchor = await wallet.anchor(coins[0]!);
    submit(anchor);
    const waiting = devchain.waitFor(
      anchor.id('hex'),
      ({ status }) => status === 'MINED',
      new AbortController().signal,
    );
    devchain.mine();
    await waiting;
    const limit = AbortSignal.timeout(20);
    await devchain.waitFor(anchor.id('hex'), ({ status }) => status === 'REJECTED', limit);
    expect(limit.aborted).to.equal(true);
  });
});

/** State that reading the journal must restore. */
function snapshot({ ledger, callbacks }: Devchain): unknown {
  const { chain, mempool, orphans, transactionCount } = ledger;
  const blocks = Array.from({ length: chain.tip.height + 1 }, (_, height) => chain.at(height)!);
  const transactions = blocks
    .flatMap((block) => block.txids)
    .concat(
      mempool.template(chain).map(({ txid }) => txid),
      orphans.map(({ txid }) => txid),
    )
    .map((txid) => ledger.transaction(txid))
    .map((record) => record && { ...record, raw: undefined, transaction: undefined });
  const counts = [chain.coinCount, chain.blockCount, mempool.size, transactionCount];
  return { tip: chain.tip.hash, transactions, counts, pending: callbacks.pending };
}

function checkChain({ ledger }: Devchain): void {
  const { chain } = ledger;
  const blocks = Array.from({ length: chain.tip.height + 1 }, (_, height) => chain.at(height)!);
  checkHeaderChain(blocks.map(({ height, header }) => ({ height, raw: header })));
  for (const block of blocks) {
    const root = MerklePath.fromHex(chain.bump(block, block.txids[0]!)).computeRoot(block.txids[0]);
    expect(root).to.equal(toDisplayHex(parseHeader(block.header).merkleRoot));
    for (const txid of block.txids.slice(1)) expect(ledger.transaction(txid)!.status).to.equal('MINED');
  }
  expect(fromHex(chain.tip.hash)).to.have.length(32);
}

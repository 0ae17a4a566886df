import { MerklePath, P2PKH, Transaction } from '@bsv/sdk';
import { expect } from 'chai';
import { ArcProblem } from './arc-problem.ts';
import { readSubmissions } from './submission.ts';
import { TestWallet } from './testing/wallet.ts';

describe('submissions', () => {
  const wallet = new TestWallet();
  let source: Transaction;
  let anchor: Transaction;

  before(async () => {
    source = new Transaction();
    source.addInput({
      sourceTXID: '11'.repeat(32),
      sourceOutputIndex: 0,
      unlockingScript: new P2PKH().lock(wallet.address),
    });
    source.addOutput({ satoshis: 1000, lockingScript: new P2PKH().lock(wallet.address) });
    source.merklePath = new MerklePath(7, [[{ offset: 0, hash: source.id('hex'), txid: true }]]);
    anchor = await wallet.anchor({ source, index: 0 });
  });

  const bytes = (numbers: number[]) => Uint8Array.from(numbers);

  it('are parsed as raw transactions', () => {
    const { transactions, roots } = readSubmissions(bytes(anchor.toBinary()));
    expect(transactions.map((found) => found.txid)).to.deep.equal([anchor.id('hex')]);
    expect(transactions[0]!.stated).to.equal(undefined);
    expect(roots).to.deep.equal([]);
  });

  it('are parsed in extended format, with the spent outputs', () => {
    const [found] = readSubmissions(bytes(anchor.toEF())).transactions;
    expect(found!.txid).to.equal(anchor.id('hex'));
    expect([...found!.raw]).to.deep.equal(anchor.toBinary());
    expect(found!.stated).to.deep.equal([
      { satoshis: 1000n, lockingScript: bytes(new P2PKH().lock(wallet.address).toBinary()) },
    ]);
  });

  it('are parsed as BEEF: the unmined transaction, and the root claimed by its ancestors', () => {
    const { transactions, roots } = readSubmissions(bytes(anchor.toBEEF()));
    expect(transactions.map((found) => found.txid)).to.deep.equal([anchor.id('hex')]);
    expect(roots).to.deep.equal([{ height: 7, root: source.id('hex') }]);
  });

  it('are parsed one after another in mixed formats', () => {
    const stream = bytes([...anchor.toEF(), ...source.toBinary()]);
    expect(readSubmissions(stream).transactions.map((found) => found.txid)).to.deep.equal([
      anchor.id('hex'),
      source.id('hex'),
    ]);
  });

  const refused: { what: string; from: () => number[]; status: number }[] = [
    { what: 'a cut raw transaction', from: () => anchor.toBinary().slice(0, -1), status: 400 },
    { what: 'a trailing byte', from: () => [...anchor.toBinary(), 0], status: 400 },
    { what: 'a cut extended transaction', from: () => anchor.toEF().slice(0, -1), status: 400 },
    { what: 'a cut BEEF', from: () => anchor.toBEEF().slice(0, -1), status: 463 },
    { what: 'a BEEF with a trailing byte', from: () => [...anchor.toBEEF(), 0], status: 463 },
    { what: 'two bytes', from: () => [0, 0xff], status: 400 },
  ];
  for (const { what, from, status } of refused) {
    it(`are rejected with ${status} for ${what}`, () => {
      const read = () => readSubmissions(bytes(from()));
      expect(read).to.throw(ArcProblem).with.nested.property('body.status', status);
    });
  }
});

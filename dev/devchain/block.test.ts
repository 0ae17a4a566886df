import { Transaction } from '@bsv/sdk';
import { blockHash, checkHeaderChain, parseHeader, toDisplayHex, toHex } from '@kellet/verify';
import { expect } from 'chai';
import { coinbaseTransaction, genesisHeader, mineHeader, nextBlockTime, REGTEST_BITS } from './block.ts';

describe('blocks', () => {
  it('begin with the genesis block of regtest', () => {
    const hash = '0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206';
    expect(toDisplayHex(blockHash(genesisHeader))).to.equal(hash);
  });

  it('have proof of work and link to their predecessor', () => {
    const chain = [{ height: 0, raw: genesisHeader }];
    for (let height = 1; height <= 20; height++) {
      const raw = mineHeader(blockHash(chain.at(-1)!.raw), new Uint8Array(32).fill(height), 1_300_000_000 + height);
      chain.push({ height, raw });
    }
    expect(checkHeaderChain(chain).headers.at(-1)!.header.bits).to.equal(REGTEST_BITS);
  });

  for (const { now, times, next } of [
    { now: 1000, times: [], next: 1000 },
    { now: 1000, times: [900, 950], next: 1000 },
    { now: 1000, times: [1500], next: 1501 },
    // The median of the last eleven counts, not the newest.
    { now: 1000, times: [9999, ...Array.from({ length: 10 }, (_, i) => 1000 + i), 5000], next: 1006 },
  ]) {
    it(`at ${now} after [${times.join(' ')}] have the time ${next}`, () => {
      const headers = times.map((time) => mineHeader(new Uint8Array(32), new Uint8Array(32), time));
      expect(nextBlockTime(now, headers)).to.equal(next);
    });
  }

  it('have a unique coinbase with their height', () => {
    const script = Uint8Array.of(0x51);
    const raw = coinbaseTransaction(300, 128, 5_000_000_001n, script);
    const parsed = Transaction.fromBinary([...raw]);
    expect(parsed.inputs[0]!.sourceTXID).to.equal('00'.repeat(32));
    expect(parsed.inputs[0]!.unlockingScript!.toHex()).to.equal('022c01' + '028000');
    expect(parsed.outputs[0]!.satoshis).to.equal(5_000_000_001);
    expect(toHex(coinbaseTransaction(300, 129, 5_000_000_001n, script))).not.to.equal(toHex(raw));
  });

  it('encode the given fields', () => {
    const raw = mineHeader(new Uint8Array(32).fill(1), new Uint8Array(32).fill(2), 77);
    const header = parseHeader(raw);
    expect([toHex(header.previousHash), toHex(header.merkleRoot), header.time]).to.deep.equal([
      '01'.repeat(32),
      '02'.repeat(32),
      77,
    ]);
  });
});

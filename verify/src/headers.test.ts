import { expect } from 'chai';
import { mineHeaders } from '../testing/sound-bundle.ts';
import { fromHex, toDisplayHex, toHex } from './bytes.ts';
import { MalformedError, RefutedError } from './errors.ts';
import { blockHash, checkHeaderChain, parseHeader, serialiseHeader, targetOf, workOf } from './headers.ts';
import { sha256d } from './sha256.ts';

// The first two blocks of the main chain; public and immutable.
const GENESIS =
  '0100000000000000000000000000000000000000000000000000000000000000000000003ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c';
const FIRST =
  '010000006fe28c0ab6f1b372c1a6a246ae63f74f931e8365e15a089c68d6190000000000982051fd1e4ba744bbbe680e1fee14677ba1a3c3540bf7b1cdb606e857233e0e61bc6649ffff001d01e36299';

describe('headers', () => {
  it('parses, hashes and serialises the first blocks of the main chain', () => {
    const header = parseHeader(fromHex(FIRST));
    expect(toDisplayHex(header.merkleRoot)).to.equal(
      '0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098',
    );
    expect(toDisplayHex(blockHash(fromHex(FIRST)))).to.equal(
      '00000000839a8e6886ab5951d76f411475428afc90947ee320161bbf18eb6048',
    );
    expect(toHex(serialiseHeader(header))).to.equal(FIRST);
    const chain = checkHeaderChain([GENESIS, FIRST].map((hex, height) => ({ height, raw: fromHex(hex) })));
    expect(chain.work).to.equal(2n * 0x1_0001_0001n);
  });

  for (const [bits, target] of [
    [0x1d00ffff, 0xffffn << 208n],
    [0x207fffff, 0x7fffffn << 232n],
    [0x03123456, 0x123456n],
    [0x02123456, 0x1234n],
    [0x1803a30c, 0x03a30cn << 168n],
  ] as const) {
    it(`decodes bits ${bits.toString(16)}`, () => expect(targetOf(bits)).to.equal(target));
  }

  for (const bits of [0, 0x1d000000, 0x01003456, 0x04923456, 0x21010000, 0xff123456]) {
    it(`rejects bits ${bits.toString(16)}`, () => expect(() => targetOf(bits)).to.throw(MalformedError));
  }

  it('computes the work of regtest and of the main chain', () => {
    expect(workOf(0x207fffff)).to.equal(2n);
    expect(workOf(0x1d00ffff)).to.equal(0x1_0001_0001n);
  });

  const headers = mineHeaders(sha256d(Uint8Array.of(1)), 4).map((raw, i) => ({ height: 10 + i, raw }));
  const unmined = (() => {
    for (let nonce = 0; ; nonce++) {
      const raw = serialiseHeader({ ...parseHeader(headers[3]!.raw), nonce });
      if (blockHash(raw)[31]! >= 0x80) return raw;
    }
  })();

  it('accepts a mined chain', () => {
    const chain = checkHeaderChain(headers);
    expect(chain.headers.map(({ height }) => height)).to.deep.equal([10, 11, 12, 13]);
    expect(chain.work).to.equal(8n);
  });

  const faults: [string, typeof headers, typeof RefutedError | typeof MalformedError, RegExp][] = [
    ['a gap in height', [headers[0]!, { ...headers[1]!, height: 12 }], RefutedError, /after height 10 comes 12/],
    ['a header left out', [headers[0]!, { ...headers[2]!, height: 11 }], RefutedError, /does not follow/],
    ['headers in reverse order', [headers[1]!, { ...headers[0]!, height: 12 }], RefutedError, /does not follow/],
    ['a hash above the target', [...headers.slice(0, 3), { height: 13, raw: unmined }], RefutedError, /proof of work/],
    ['79 bytes', [{ height: 1, raw: headers[0]!.raw.subarray(1) }], MalformedError, /80 bytes/],
    ['nothing', [], MalformedError, /no headers/],
  ];
  for (const [name, chain, type, says] of faults) {
    it(`rejects ${name}`, () => expect(() => checkHeaderChain(chain)).to.throw(type, says));
  }
});

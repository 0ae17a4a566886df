import { expect } from 'chai';
import { addPiece } from './pieces.ts';

describe('the pieces of bytes', () => {
  const kept = (lengths: Iterable<number>) => {
    const pieces: Buffer[] = [];
    const given: Buffer[] = [];
    let byte = 0;
    for (const length of lengths) {
      const piece = Buffer.allocUnsafeSlow(length).fill((byte = (byte + 1) % 256));
      given.push(piece);
      addPiece(pieces, piece);
    }
    return { pieces, given };
  };
  const memory = (pieces: readonly Buffer[]) => pieces.reduce((sum, { buffer }) => sum + buffer.byteLength, 0);

  const cases: [string, number[], number][] = [
    ['one byte each', Array.from({ length: 65_536 }, () => 1), 32],
    ['many that grow', Array.from({ length: 500 }, (_, index) => index + 1), 100],
    ['many that shrink, again and again', Array.from({ length: 5000 }, (_, index) => 100 - (index % 100)), 700],
    ['small ones between large ones', Array.from({ length: 200 }, (_, index) => (index % 2 === 0 ? 16_384 : 1)), 200],
  ];
  for (const [what, lengths, most] of cases) {
    it(`are few, and the same bytes: ${what}`, () => {
      const { pieces, given } = kept(lengths);
      expect(Buffer.concat(pieces).equals(Buffer.concat(given))).to.equal(true);
      expect(pieces.length).to.be.at.most(most);
      expect(memory(pieces)).to.equal(given.reduce((sum, { length }) => sum + length, 0));
    });
  }

  it('keep no memory of which they are a small part', () => {
    const pieces: Buffer[] = [];
    for (let count = 0; count < 100; count += 1) addPiece(pieces, Buffer.alloc(65_536).subarray(0, 5000));
    expect(memory(pieces)).to.equal(500_000);
  });

  it('are not copied when they are large', () => {
    const { pieces, given } = kept([65_536, 65_536, 10_000]);
    expect(pieces.map((piece, index) => piece === given[index])).to.deep.equal([true, true, true]);
  });
});

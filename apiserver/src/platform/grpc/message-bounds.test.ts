import { expect } from 'chai';
import { framed } from '../../gateway/testing/test-grpc.ts';
import { MessageBounds } from './message-bounds.ts';

const messages = (...sizes: number[]): Buffer => Buffer.concat(sizes.map((size) => framed(Buffer.alloc(size, 7))));

describe('the bounds of messages', () => {
  for (const [what, bytes, most, expected, isWithin] of [
    ['nothing', Buffer.alloc(0), 1, 0, false],
    ['a message', messages(3), 1, 8, false],
    ['an empty message', messages(0), 1, 5, false],
    ['one of two', messages(3, 4), 1, 8, false],
    ['two of two', messages(3, 4), 2, 17, false],
    ['two of many', messages(0, 0, 0, 0), 2, 10, false],
    ['fewer than there may be', messages(0, 300), 3, 310, false],
    ['a part of a head', messages(3).subarray(0, 4), 1, 4, true],
    ['a head', messages(3).subarray(0, 5), 1, 5, true],
    ['a part of a message', messages(3).subarray(0, 7), 1, 7, true],
    ['one and the part of another', messages(3, 4).subarray(0, 10), 2, 10, true],
    ['a length of four bytes', Buffer.from([0, 255, 255, 255, 255, 1]), 1, 6, true],
  ] as const) {
    it(`take ${what}`, () => {
      const bounds = new MessageBounds();
      expect(bounds.take(bytes, most)).to.equal(expected);
      expect(bounds.isWithin).to.equal(isWithin);
    });
  }

  it('are the same however the bytes arrive', () => {
    const bytes = messages(0, 300, 1, 70_000, 0, 5);
    for (const size of [1, 2, 3, 7, 1000, bytes.length]) {
      const bounds = new MessageBounds();
      const ends: number[] = [];
      for (let at = 0; at < bytes.length;) {
        const piece = bytes.subarray(at, at + size);
        at += bounds.take(piece, 1);
        if (!bounds.isWithin) ends.push(at);
      }
      expect(ends, `pieces of ${size}`).to.deep.equal([5, 310, 316, 70_321, 70_326, 70_336]);
    }
  });
});

import { expect } from 'chai';
import { toHex } from './bytes.ts';
import { checkChainPath, GENESIS_HEAD, MAXIMUM_SEGMENT_LENGTH, segmentHead, segmentPath } from './chain-mode.ts';
import { RefutedError } from './errors.ts';
import { checkMerklePath, hashPair, merkleLevels, merklePath } from './merkle.ts';
import { sha256d } from './sha256.ts';

const leavesOf = (count: number) => Array.from({ length: count }, (_, i) => sha256d(Uint8Array.of(i, count)));

/** Returns a batch tree of `count` heads of which `head` is the last. */
function batchOf(head: Uint8Array, count: number) {
  const levels = merkleLevels([...leavesOf(count - 1), head]);
  return { root: levels.at(-1)![0]!, path: merklePath(levels, count - 1) };
}

describe('chain mode', () => {
  it('chains heads from 32 zero bytes', () => {
    const [a, b] = leavesOf(2);
    expect(toHex(segmentHead(GENESIS_HEAD, [a!, b!]))).to.equal(toHex(hashPair(hashPair(new Uint8Array(32), a!), b!)));
  });

  it('proves every leaf of segments of 1 to 64 points, in batches of 1 to 9 segments', () => {
    for (const length of [1, 2, 3, 17, MAXIMUM_SEGMENT_LENGTH]) {
      for (const segments of [1, 2, 3, 5, 8, 9]) {
        const leaves = leavesOf(length);
        const { root, path } = batchOf(segmentHead(GENESIS_HEAD, leaves), segments);
        for (let i = 0; i < length; i++) {
          const whole = [...segmentPath(GENESIS_HEAD, leaves, i), ...path];
          expect(toHex(checkChainPath(leaves[i]!, whole, segments, segments - 1))).to.equal(toHex(root));
          expect(() => checkMerklePath(leaves[i]!, whole, segments, segments - 1)).to.throw(RefutedError);
        }
      }
    }
  });

  const leaves = leavesOf(5);
  const { path } = batchOf(segmentHead(GENESIS_HEAD, leaves), 4);
  const inside = segmentPath(GENESIS_HEAD, leaves, 2);
  const faults: [string, Parameters<typeof checkChainPath>][] = [
    ['a path of the batch tree alone', [leaves[2]!, path, 4, 3]],
    ['a first step on the right', [leaves[2]!, [...inside.slice(1), ...path], 4, 3]],
    ['a later step on the left', [leaves[2]!, [inside[0]!, ...inside, ...path], 4, 3]],
    ['another segment', [leaves[2]!, [...inside, ...path], 4, 2]],
    ['another count of segments', [leaves[2]!, [...inside, ...path], 2, 1]],
    ['a segment above 64', [leaves[2]!, [inside[0]!, ...Array.from({ length: 64 }, () => inside[1]!), ...path], 4, 3]],
  ];
  for (const [name, given] of faults) {
    it(`rejects ${name}`, () => expect(() => checkChainPath(...given)).to.throw(RefutedError));
  }

  it('builds no path for what does not exist', () => {
    expect(() => segmentPath(GENESIS_HEAD, leaves, 5)).to.throw(RangeError);
    expect(() => segmentPath(GENESIS_HEAD, leavesOf(65), 0)).to.throw(RangeError);
  });
});

import { MerklePath } from '@bsv/sdk';
import { expect } from 'chai';
import { buildBump, computeBumpRoot, serialiseBump } from './bump.ts';
import { equalBytes, reversed, toDisplayHex, toHex } from './bytes.ts';
import { RefutedError } from './errors.ts';
import { checkMerklePath, hashPair, merkleDepth, merkleLevels, merklePath, walkMerklePath } from './merkle.ts';
import { sha256d } from './sha256.ts';

const leavesOf = (count: number) =>
  Array.from({ length: count }, (_, i) => sha256d(Uint8Array.of(i & 0xff, i >> 8, count & 0xff, count >> 8)));

describe('merkle: trees of 1 to 257 leaves', () => {
  it('gives every leaf a valid path, to the root that @bsv/sdk computes', () => {
    for (let count = 1; count <= 257; count++) {
      const leaves = leavesOf(count);
      const levels = merkleLevels(leaves);
      const root = levels.at(-1)![0]!;
      for (let index = 0; index < count; index++) {
        const path = merklePath(levels, index);
        expect(path.length).to.equal(Math.ceil(Math.log2(count)));
        expect(equalBytes(checkMerklePath(leaves[index]!, path, count, index), root), `${index} of ${count}`).to.be
          .true;
        expect(equalBytes(walkMerklePath(leaves[index]!, path), root)).to.be.true;
      }
      const index = (count * 7) % count === 0 ? count - 1 : (count * 7) % count;
      const bump = MerklePath.fromHex(toHex(serialiseBump(buildBump(7, leaves, index))));
      expect(bump.computeRoot(toDisplayHex(leaves[index]!))).to.equal(toDisplayHex(root));
    }
  });

  it('rejects every leaf at every other index', () => {
    for (const count of [1, 2, 3, 5, 6, 7, 8, 11, 33]) {
      const leaves = leavesOf(count);
      const levels = merkleLevels(leaves);
      for (let index = 0; index < count; index++) {
        const path = merklePath(levels, index);
        for (let other = 0; other < 2 ** merkleDepth(count) + 1; other++) {
          if (other === index) continue;
          expect(() => checkMerklePath(leaves[index]!, path, count, other)).to.throw(RefutedError);
        }
      }
    }
  });

  it('rejects the phantom leaf that duplicating the last node would prove (CVE-2012-2459)', () => {
    for (const count of [3, 5, 6, 7, 9, 100, 129]) {
      const leaves = leavesOf(count);
      const phantom = [...leaves];
      while (phantom.length < 2 ** merkleDepth(count)) {
        const width = phantom.length;
        const block = width & -width; // the subtree that an odd level repeats
        phantom.push(...phantom.slice(width - block));
      }
      const levels = merkleLevels(phantom);
      expect(toHex(levels.at(-1)![0]!)).to.equal(toHex(merkleLevels(leaves).at(-1)![0]!));
      for (let index = count; index < phantom.length; index++) {
        const path = merklePath(levels, index);
        expect(() => checkMerklePath(phantom[index]!, path, count, index)).to.throw(RefutedError, 'does not exist');
        expect(() => checkMerklePath(phantom[index]!, path, count, count - 1)).to.throw(RefutedError);
      }
    }
  });

  it('rejects an inner node as a leaf, and any count with another depth', () => {
    const leaves = leavesOf(8);
    const levels = merkleLevels(leaves);
    const path = merklePath(levels, 2);
    const inner = hashPair(leaves[2]!, leaves[3]!);
    expect(() => checkMerklePath(inner, path.slice(1), 8, 1)).to.throw(RefutedError, 'paths of 3 steps');
    for (const count of [1, 2, 4, 9, 16, 2 ** 32 - 1]) {
      expect(() => checkMerklePath(leaves[2]!, path, count, 2)).to.throw(RefutedError);
    }
  });

  it('rejects an odd level whose last node has a different sibling', () => {
    const leaves = leavesOf(3);
    const path = merklePath(merkleLevels(leaves), 2);
    path[0] = { hash: reversed(leaves[2]!), isRight: true };
    expect(() => checkMerklePath(leaves[2]!, path, 3, 2)).to.throw(RefutedError, 'other than itself');
  });

  it('agrees with the BUMP of the same leaves', () => {
    const leaves = leavesOf(21);
    for (let index = 0; index < 21; index++) {
      expect(toHex(computeBumpRoot(buildBump(1, leaves, index)))).to.equal(toHex(merkleLevels(leaves).at(-1)![0]!));
    }
  });
});

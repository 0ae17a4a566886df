// The proofs of every leaf, compared with what the independent library computes.
import { randomBytes } from 'node:crypto';
import {
  checkChainPath,
  checkMerklePath,
  equalBytes,
  GENESIS_HEAD,
  merkleLevels,
  merklePath,
  segmentHead,
  segmentPath,
} from '@kellet/verify';
import { expect } from 'chai';
import { newId } from '../platform/ids.ts';
import { createProver, proveLeaves, type ProvenBatch, type Segment } from './proof.ts';

const hashes = (count: number) => Array.from({ length: count }, () => new Uint8Array(randomBytes(32)));
const plain = (path: readonly { hash: Uint8Array; isRight: boolean }[]) =>
  path.map(({ hash, isRight }) => [Buffer.from(hash).toString('hex'), isRight]);

function batchOf(mode: ProvenBatch['mode'], leaves: readonly Uint8Array[], segments: Segment[] = []): ProvenBatch {
  return {
    ...{ batchId: newId(), mode, leaves: Buffer.concat(leaves), segments, count: segments.length || leaves.length },
    ...{ merkleRoot: new Uint8Array(32), txid: '', rawTx: new Uint8Array(), bump: new Uint8Array() },
    ...{ blockHeight: 1, blockHash: '', openedAt: new Date(), sealedAt: new Date(), confirmedAt: new Date() },
  };
}

describe('proofs of leaves', () => {
  it('have the same paths as those of the library, in trees of every shape', () => {
    for (const count of [...Array.from({ length: 34 }, (_, index) => index + 1), 1000]) {
      const leaves = hashes(count);
      const levels = merkleLevels(leaves);
      const prove = createProver(batchOf('merkle', leaves));
      for (const [index, leaf] of leaves.entries()) {
        const { dataHash, leafIndex, path } = prove(index);
        expect([equalBytes(dataHash, leaf), leafIndex]).to.deep.equal([true, index]);
        expect(plain(path)).to.deep.equal(plain(merklePath(levels, index)));
        expect(equalBytes(checkMerklePath(leaf, path, count, index), levels.at(-1)![0]!)).to.equal(true);
      }
    }
  });

  it('have the same paths as those of the library in chain mode, in segments of every length', () => {
    const lengths = [1, 2, 3, 64, 5];
    const leaves = hashes(lengths.reduce((sum, length) => sum + length));
    let firstLeaf = 0;
    const segments = lengths.map((leafCount, place): Segment => {
      const previousHead = place === 0 ? GENESIS_HEAD : hashes(1)[0]!;
      const segment = { deviceId: newId(), previousHead, firstLeaf, leafCount };
      firstLeaf += leafCount;
      return segment;
    });
    const leavesOf = (segment: Segment) => leaves.slice(segment.firstLeaf, segment.firstLeaf + segment.leafCount);
    const levels = merkleLevels(segments.map((segment) => segmentHead(segment.previousHead, leavesOf(segment))));
    const prove = createProver(batchOf('chain', leaves, segments));
    for (const [place, segment] of segments.entries()) {
      for (const [index, leaf] of leavesOf(segment).entries()) {
        const { dataHash, leafIndex, path } = prove(segment.firstLeaf + index);
        expect([equalBytes(dataHash, leaf), leafIndex]).to.deep.equal([true, place]);
        const inSegment = segmentPath(segment.previousHead, leavesOf(segment), index);
        expect(plain(path)).to.deep.equal(plain([...inSegment, ...merklePath(levels, place)]));
        expect(equalBytes(checkChainPath(leaf, path, lengths.length, place), levels.at(-1)![0]!)).to.equal(true);
      }
    }
  });

  it('of many batches are in the order of the leaves, and others are served after each batch', async () => {
    const batches = Array.from({ length: 50 }, () => batchOf('merkle', hashes(1000)));
    const places = [...batches, ...batches].map((batch, at) => ({ batch, index: at }));
    let isDone = false;
    let turns = 0;
    const others = (async () => {
      for (; !isDone; turns += 1) await new Promise(setImmediate);
    })();
    const made = await proveLeaves(places, ({ batch, index }, proof) => {
      expect(Buffer.from(proof.dataHash).equals(batch.leaves.subarray(index * 32, index * 32 + 32))).to.equal(true);
      return [batch.batchId, proof.leafIndex];
    });
    isDone = true;
    await others;
    expect(made).to.deep.equal(places.map(({ batch, index }) => [batch.batchId, index]));
    expect(turns).to.be.at.least(batches.length);
  });

  it('of one batch are made some at a time', async () => {
    const batch = batchOf('merkle', hashes(500));
    const made = new Set<number>();
    const seen = new Set<number>();
    const others = (async () => {
      for (; made.size < 500; await new Promise(setImmediate)) seen.add(made.size);
    })();
    const places = Array.from({ length: 500 }, (_, index) => ({ batch, index }));
    await proveLeaves(places, ({ index }) => made.add(index));
    await others;
    expect([...seen]).to.include.members([100, 200, 300, 400]);
  });

  it('of a leaf that the batch does not have are an error', () => {
    expect(() => createProver(batchOf('merkle', hashes(3)))(3)).to.throw(RangeError, 'no leaf 3');
    expect(() => createProver(batchOf('chain', hashes(3)))(3)).to.throw(RangeError);
  });
});

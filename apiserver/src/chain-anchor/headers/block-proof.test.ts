import {
  buildBump,
  concatBytes,
  MalformedError,
  merkleLevels,
  RefutedError,
  serialiseBump,
  serialiseHeader,
  sha256d,
  toDisplayHex,
  toHex,
} from '@kellet/verify';
import { expect } from 'chai';
import { heightOfPath, proveInBlock } from './block-proof.ts';

describe('the proof that a transaction is in a block', () => {
  const txids = Array.from({ length: 7 }, (_, i) => sha256d(Uint8Array.of(i)));
  const tree = merkleLevels(txids);
  const header = serialiseHeader({
    version: 1,
    previousHash: new Uint8Array(32),
    merkleRoot: tree.at(-1)![0]!,
    time: 1_700_000_000,
    bits: 0x207fffff,
    nonce: 0,
  });
  const txid = toDisplayHex(txids[5]!);

  /** Returns the path of transaction 5 including the nodes computable from it, as some processors write it. */
  const pathWith = (change: (level: number, hash: Uint8Array) => Uint8Array = (_, hash) => hash) => {
    const bump = buildBump(814_000, txids, 5);
    for (const level of [1, 2]) {
      const offset = 5 >> level;
      bump.levels[level]!.push({ offset, hash: change(level, tree[level]![offset]!), isTxid: false });
    }
    return toHex(serialiseBump(bump));
  };

  it('accepts a path that includes computable nodes and keeps its bytes', () => {
    expect(heightOfPath(pathWith())).to.equal(814_000);
    expect(toHex(proveInBlock(txid, pathWith(), header))).to.equal(pathWith());
  });

  it('refutes a path with a node that differs from the computed one', () => {
    for (const wrong of [1, 2]) {
      const path = pathWith((level, hash) => (level === wrong ? sha256d(hash) : hash));
      expect(() => proveInBlock(txid, path, header)).to.throw(RefutedError, `level ${wrong}`);
    }
  });

  it('refutes a different transaction or block and rejects a malformed path', () => {
    expect(() => proveInBlock(toDisplayHex(txids[1]!), pathWith(), header)).to.throw(RefutedError, 'not among');
    const other = concatBytes(header.subarray(0, 36), sha256d(header), header.subarray(68));
    expect(() => proveInBlock(txid, pathWith(), other)).to.throw(RefutedError, 'Merkle root');
    expect(() => proveInBlock(txid, `${pathWith()}00`, header)).to.throw(MalformedError);
  });
});

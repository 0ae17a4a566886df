import { readFileSync } from 'node:fs';
import { MerklePath } from '@bsv/sdk';
import { expect } from 'chai';
import { mutate, seeded } from '../testing/mutate.ts';
import { buildBump, type Bump, type BumpNode, bumpRootFor, computeBumpRoot, parseBump, serialiseBump } from './bump.ts';
import { fromDisplayHex, fromHex, reversed, toDisplayHex, toHex } from './bytes.ts';
import { MalformedError, RefutedError } from './errors.ts';
import { merkleLevels, merkleRoot } from './merkle.ts';
import { sha256d } from './sha256.ts';

/** Returns the BUMPs in the SDK's own tests. */
function sdkVectors(name: string): string[] {
  const file = new URL(`../../src/transaction/__tests/${name}`, import.meta.resolve('@bsv/sdk'));
  const source = readFileSync(file, 'utf8');
  return [...source.matchAll(/bump: '([0-9a-f]+)'/g)].map((match) => match[1]!);
}

/** Reports whether parsing throws one of the two documented errors; any other error passes through. */
function isRefused(raw: Uint8Array): boolean {
  try {
    parseBump(raw);
    return false;
  } catch (error) {
    if (error instanceof MalformedError || error instanceof RefutedError) return true;
    throw error;
  }
}

/**
 * Returns the BUMP of several transactions of a block with every node of their paths to the root, including computable
 * ones.
 */
function buildVerboseBump(block: readonly Uint8Array[], wanted: readonly number[]): Bump {
  const tree = merkleLevels(block);
  const levels = tree.slice(0, -1).map((nodes, level) => {
    const onWay = new Set(wanted.map((index) => index >> level));
    const offsets = [...new Set([...onWay].flatMap((offset) => [offset & ~1, offset | 1]))];
    return offsets.map((offset): BumpNode => {
      const isTxid = level === 0 && onWay.has(offset);
      return offset < nodes.length ? { offset, hash: nodes[offset]!, isTxid } : { offset, isTxid: false };
    });
  });
  return { blockHeight: 9, levels };
}

const parseAgain = (bump: Bump) => serialiseBump(parseBump(serialiseBump(bump)));

const txids = Array.from({ length: 13 }, (_, i) => sha256d(Uint8Array.of(i)));

/** Changes to a sound BUMP of transaction 5 of 13, and the parser's message for each. */
const faults: { fault: string; change: (bump: Bump) => void; says: RegExp }[] = [
  {
    fault: 'a node that belongs to no transaction',
    change: (b) => (b.levels[1]![0]!.offset = 1),
    says: /no transaction/,
  },
  { fault: 'a node outside the tree', change: (b) => (b.levels[2]![0]!.offset = 4), says: /outside/ },
  { fault: 'a repeated node', change: (b) => b.levels[1]!.push(b.levels[1]![0]!), says: /repeated/ },
  { fault: 'a missing leaf', change: (b) => b.levels[0]!.shift(), says: /missing/ },
  { fault: 'a missing node', change: (b) => b.levels[2]!.pop(), says: /missing/ },
  { fault: 'no leaves', change: (b) => b.levels[0]!.splice(0), says: /no transaction|one root/ },
  { fault: 'a copy on the left', change: (b) => delete b.levels[0]![0]!.hash, says: /copies nothing/ },
  { fault: 'a transaction id above level 0', change: (b) => (b.levels[1]![0]!.isTxid = true), says: /flag 2/ },
  {
    fault: 'two leaves under different roots',
    change: (b) => {
      b.levels[0]!.push({ offset: 0, hash: txids[0]!, isTxid: true }, { offset: 1, hash: txids[9]!, isTxid: false });
    },
    says: /no transaction|missing/,
  },
  {
    fault: 'a copy that is not the last of its level',
    change: (b) => {
      delete b.levels[0]![1]!.hash;
      b.levels[0]!.push({ offset: 6, hash: txids[6]!, isTxid: true }, { offset: 7, hash: txids[7]!, isTxid: false });
    },
    says: /not the last/,
  },
];

describe('bump', () => {
  it('builds what @bsv/sdk resolves to the same root, for every position in blocks of 1 to 40 transactions', () => {
    for (let count = 1; count <= 40; count++) {
      const block = Array.from({ length: count }, (_, i) => sha256d(Uint8Array.of(i, count)));
      const root = toDisplayHex(merkleRoot(block));
      for (let index = 0; index < count; index++) {
        const raw = serialiseBump(buildBump(814_000 + count, block, index));
        const txid = toDisplayHex(block[index]!);
        const theirs = MerklePath.fromHex(toHex(raw));
        expect(theirs.computeRoot(txid)).to.equal(root);
        expect(theirs.blockHeight).to.equal(814_000 + count);
        expect(toDisplayHex(bumpRootFor(parseBump(raw), block[index]!))).to.equal(root);
        expect(toHex(serialiseBump(parseBump(raw)))).to.equal(toHex(raw));
      }
    }
  });

  it("parses the SDK's sound BUMPs to the same bytes and root", () => {
    const vectors = sdkVectors('bump.valid.vectors.ts');
    expect(vectors).to.have.length.greaterThan(1);
    for (const hex of vectors) {
      const bump = parseBump(fromHex(hex));
      expect(toHex(serialiseBump(bump))).to.equal(hex);
      expect(toDisplayHex(computeBumpRoot(bump))).to.equal(MerklePath.fromHex(hex).computeRoot());
    }
  });

  it('rejects every faulty BUMP of the SDK', () => {
    const vectors = sdkVectors('bump.invalid.vectors.ts');
    expect(vectors).to.have.length.greaterThan(5);
    for (const hex of vectors) expect(isRefused(fromHex(hex))).to.equal(true, hex);
  });

  it('parses the example of BRC-74, which includes two computable nodes', () => {
    const source = readFileSync(
      new URL('../../src/transaction/__tests/MerklePath.test.ts', import.meta.resolve('@bsv/sdk')),
      'utf8',
    );
    const hex = /BRC74Hex =\s*'([0-9a-f]+)'/.exec(source)![1]!;
    const bump = parseBump(fromHex(hex));
    expect(bump.blockHeight).to.equal(813_706);
    expect(bump.levels[1]!.map(({ offset }) => offset)).to.deep.equal([1524, 1525]);
    expect(toDisplayHex(computeBumpRoot(bump))).to.equal(/BRC74Root =\s*'([0-9a-f]+)'/.exec(source)![1]);
    expect(toHex(serialiseBump(bump))).to.equal(hex);
    const marked = bump.levels[0]!.filter(({ isTxid }) => isTxid).map(({ hash }) => toDisplayHex(hash!));
    expect(marked).to.have.length(2);
    for (const txid of marked) {
      expect(toDisplayHex(bumpRootFor(bump, fromDisplayHex(txid)))).to.equal(MerklePath.fromHex(hex).computeRoot(txid));
    }
  });

  it('accepts any correct computable nodes, for any transactions of blocks of 2 to 40', () => {
    for (let count = 2; count <= 40; count++) {
      const block = Array.from({ length: count }, (_, i) => sha256d(Uint8Array.of(i, count)));
      const root = toHex(merkleRoot(block));
      for (const wanted of [[0], [count - 1], [0, count - 1], [count >> 1, count - 1], block.map((_, i) => i)]) {
        const bump = buildVerboseBump(block, wanted);
        const raw = serialiseBump(bump);
        for (const index of wanted) expect(toHex(bumpRootFor(parseBump(raw), block[index]!))).to.equal(root);
      }
    }
  });

  it('refutes a node that differs from the hash of the nodes below it, at every level', () => {
    for (const wanted of [[5], [3, 12], [12]]) {
      for (let level = 1; level < 4; level++) {
        const places = buildVerboseBump(txids, wanted).levels[level]!;
        for (const [place, { offset }] of places.entries()) {
          if (!wanted.some((index) => index >> level === offset)) continue;
          const bump = buildVerboseBump(txids, wanted);
          bump.levels[level]![place]!.hash = sha256d(Uint8Array.of(99));
          expect(() => parseBump(serialiseBump(bump))).to.throw(RefutedError, `offset ${offset} at level ${level}`);
        }
      }
    }
  });

  it('rejects a copy where the node is computed', () => {
    const bump = buildVerboseBump(txids, [2, 7]);
    delete bump.levels[1]!.find(({ offset }) => offset === 3)!.hash;
    expect(() => parseBump(serialiseBump(bump))).to.throw(MalformedError, /copy/);
  });

  it('throws only its two errors for mutated bytes and never finds the root for another transaction', () => {
    const random = seeded(7);
    const sound = [[12], [3, 6], [0, 5, 12]].map((wanted) => serialiseBump(buildVerboseBump(txids, wanted)));
    const root = toHex(merkleRoot(txids));
    const rounds = Number(process.env['KELLET_FUZZ_ROUNDS'] ?? 3000);
    let sameRoot = 0;
    for (let round = 0; round < rounds; round++) {
      const raw = mutate(sound[round % sound.length]!, random);
      let bump: Bump;
      try {
        bump = parseBump(raw);
      } catch (error) {
        if (!(error instanceof MalformedError || error instanceof RefutedError)) throw error;
        continue;
      }
      expect(toHex(parseAgain(bump))).to.equal(toHex(raw));
      if (toHex(computeBumpRoot(bump)) !== root) continue;
      sameRoot++;
      for (const node of bump.levels[0]!) {
        if (node.hash) expect(txids.map(toHex)).to.include(toHex(node.hash));
      }
    }
    expect(sameRoot).to.be.greaterThan(0);
  });

  it('proves both transactions of a compound BUMP that @bsv/sdk combined', () => {
    const [a, b] = [3, 6].map((index) => MerklePath.fromHex(toHex(serialiseBump(buildBump(9, txids, index)))));
    a!.combine(b!);
    const bump = parseBump(Uint8Array.from(a!.toBinary()));
    for (const index of [3, 6]) expect(toHex(bumpRootFor(bump, txids[index]!))).to.equal(toHex(merkleRoot(txids)));
  });

  for (const { fault, change, says } of faults) {
    it(`rejects ${fault}`, () => {
      const bump = buildBump(9, txids, 5);
      change(bump);
      expect(() => parseBump(serialiseBump(bump))).to.throw(MalformedError, says);
    });
  }

  it('rejects trailing bytes, missing bytes, long varints, unknown flags and tree heights', () => {
    const raw = serialiseBump(buildBump(9, txids, 5));
    const height = Uint8Array.of(0xfd, 9, 0);
    for (const broken of [
      Uint8Array.of(...raw, 0),
      raw.subarray(0, -1),
      Uint8Array.of(...height, ...raw.subarray(1)),
      Uint8Array.of(raw[0]!, 0, ...raw.subarray(2)),
      Uint8Array.of(raw[0]!, 33, ...raw.subarray(2)),
      Uint8Array.of(...raw.subarray(0, 4), 4, ...raw.subarray(5)),
      new Uint8Array(0),
    ]) {
      expect(() => parseBump(broken)).to.throw(MalformedError);
    }
  });

  it('never computes the same root from a BUMP with one bit changed, unless only the flag of a leaf changed', () => {
    const raw = serialiseBump(buildBump(9, txids, 12)); // the last of 13: two copies on its path
    const root = toHex(merkleRoot(txids));
    let marks = 0;
    for (let bit = 8; bit < raw.length * 8; bit++) {
      const changed = Uint8Array.from(raw);
      changed[bit >> 3]! ^= 1 << (bit & 7);
      try {
        if (toHex(bumpRootFor(parseBump(changed), txids[12]!)) === root) marks++;
      } catch (error) {
        if (!(error instanceof MalformedError || error instanceof RefutedError)) throw error;
      }
    }
    expect(marks).to.equal(1);
  });

  it('refutes a transaction id that is not among the leaves', () => {
    expect(() => bumpRootFor(buildBump(9, txids, 5), txids[7]!)).to.throw(RefutedError);
    expect(() => bumpRootFor(buildBump(9, txids, 5), reversed(txids[5]!))).to.throw(RefutedError);
  });

  it('parses BUMPs as a processor sends them', () => {
    // Recorded from ARC 1.5.11 with a Bitcoin SV node on regtest: the second of two transactions of block 221.
    const bump = parseBump(
      fromHex(
        'dd0102000052961622b0ff16cd25206fd25bec619d542ae21bb2332a3d61489d0347b2438601' +
          '02aa91e2d68410aecea1af47019f5615eb80d3bbc9b83951e5c50226bbd74384a1',
      ),
    );
    expect(bump.blockHeight).to.equal(221);
    bumpRootFor(bump, fromDisplayHex('a18443d7bb2602c5e55139b8c9bbd380eb15569f0147afa1ceae1084d6e291aa'));
  });
});

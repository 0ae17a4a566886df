import { createHash } from 'node:crypto';
import { expect } from 'chai';
import fc from 'fast-check';
import {
  type Block,
  entryId,
  entryOf,
  entryUpTo,
  entryValue,
  EntryWriter,
  hashBytes,
  HashWriter,
  idBytes,
  leavesWith,
  NumberWriter,
  type Part,
  parts,
  perBlock,
  readHashes,
  widthOf,
} from './leaf-blocks.ts';
import { mergeRuns, type MergeSource, readNumbers } from './merge-runs.ts';
import { type LeafBatch, packRun, type RunFacts } from './pack-run.ts';

const idOf = (kind: string, number: number): Buffer =>
  createHash('sha256').update(`${kind} ${number}`).digest().subarray(0, idBytes);

describe('the width of numbers', () => {
  for (const [count, width] of [
    ...([
      [1, 1],
      [0x100, 1],
      [0x101, 2],
      [0x1_0000, 2],
      [0x1_0001, 3],
      [0x100_0000, 3],
      [0x100_0001, 4],
    ] as const),
  ])
    it(`is ${width} for numbers below ${count}`, () => expect(widthOf(count)).to.equal(width));
});

describe('blocks', () => {
  it('of numbers are found by their place', () => {
    for (const width of [1, 2, 3, 4]) {
      const blocks: Block[] = [];
      const writer = new NumberWriter(parts.places, width, blocks);
      const values = Array.from({ length: 10_000 }, (_, index) => (index * 7919) % 2 ** (8 * width));
      for (const value of values) writer.add(value);
      writer.end();
      expect(blocks.map(({ first }) => first)).to.deep.equal(
        Array.from({ length: Math.ceil(10_000 / perBlock(width)) }, (_, index) => index * perBlock(width)),
      );
      expect(blocks.flatMap(({ data }) => [...readNumbers(data, width)])).to.deep.equal(values);
    }
  });

  it('of entries are searched by id and by number', () => {
    const blocks: Block[] = [];
    const writer = new EntryWriter(parts.batches, blocks);
    const ids = Array.from({ length: 500 }, (_, index) => idOf('batch', index)).sort((a, b) => a.compare(b));
    for (const [index, id] of ids.entries()) writer.add(id, index * 10, index * 10);
    writer.end();
    expect(blocks.length).to.equal(3);
    for (const block of blocks) {
      expect(block.firstId).to.deep.equal(ids[block.first / 10]);
      for (let place = 0; place < block.data.length / 20; place += 1) {
        const id = entryId(block.data, place);
        expect(entryOf(block.data, id)).to.equal(place);
        const value = entryValue(block.data, place);
        expect([value, value + 9].map((number) => entryUpTo(block.data, number))).to.deep.equal([place, place]);
      }
      expect(entryOf(block.data, idOf('nothing', 0))).to.equal(-1);
    }
  });

  it('of hashes have at most some KiB, unless many hashes begin alike', () => {
    const blocks: Block[] = [];
    const writer = new HashWriter(3, blocks);
    for (let leaf = 0; leaf < 10_000; leaf += 1) writer.add(leaf * 400_000, leaf);
    for (let leaf = 10_000; leaf < 12_000; leaf += 1) writer.add(4_100_000_000, leaf);
    writer.add(4_294_967_295, 12_000);
    writer.end();
    const sizes = blocks.map(({ data }) => data.length);
    expect(sizes.filter((size) => size > 4000)).to.have.length(1);
    const hash = Buffer.alloc(hashBytes);
    hash.writeUInt32BE(4_100_000_000);
    const holding = blocks.findLast(({ first }) => first <= 4_100_000_000)!;
    expect(leavesWith(holding, 2 ** 24, hash)).to.have.length(2000);
    expect(blocks.reduce((sum, block) => sum + readHashes(block, 2 ** 24).count, 0)).to.equal(12_001);
  });
});

/** A leaf as a test gives it: few different hashes, devices and batches, so that they meet. */
interface GivenLeaf {
  readonly hash: number;
  readonly device: number;
}

/** Hashes of which some share their first four bytes. */
const hashOf = (number: number): Buffer => {
  const hash = createHash('sha256').update(`hash ${number}`).digest();
  if (number % 3 === 0) hash.writeUInt32BE(0xfffffff0 + (number % 2));
  return hash;
};

const batchOf = (number: number, leaves: readonly GivenLeaf[]): LeafBatch => ({
  id: idOf('batch', number),
  hashes: Buffer.concat(leaves.map(({ hash }) => hashOf(hash))),
  devices: Buffer.concat(leaves.map(({ device }) => idOf('device', device))),
});

/** Everything that a run says, read without regard to how it is searched. */
function contentsOf(facts: Pick<RunFacts, 'leaves' | 'devices'>, blocks: readonly Block[]) {
  const of = (part: Part) => blocks.filter((block) => block.part === part);
  const entries = (part: Part) =>
    of(part).flatMap(({ data }) =>
      Array.from({ length: data.length / 20 }, (_, place) => ({
        id: entryId(data, place).toString('hex'),
        value: entryValue(data, place),
      })),
    );
  const numbers = (part: Part, width: number) => of(part).flatMap(({ data }) => [...readNumbers(data, width)]);
  const batches = entries(parts.batches);
  const devices = entries(parts.devices);
  const places = numbers(parts.places, widthOf(facts.devices));
  const postings = numbers(parts.postings, widthOf(facts.leaves));
  const leafOf = (number: number): string => {
    const batch = batches.findLast(({ value }) => value <= number)!;
    return `${batch.id}/${number - batch.value}`;
  };
  return {
    devicesOfLeaves: Object.fromEntries(places.map((rank, number) => [leafOf(number), devices[rank]!.id])),
    leavesOfDevices: Object.fromEntries(
      devices.map(({ id, value }, rank) => [
        id,
        postings.slice(value, devices[rank + 1]?.value ?? facts.leaves).map(leafOf),
      ]),
    ),
    lookUp: (hash: Buffer) => {
      const prefix = hash.readUInt32BE();
      const block = of(parts.hashes).findLast(({ first }) => first <= prefix);
      return block ? leavesWith(block, facts.leaves, hash).map(leafOf).sort() : [];
    },
    isSorted: [entries(parts.batches), entries(parts.devices)].every(
      (list) =>
        list.map(({ id }) => id).join() ===
        list
          .map(({ id }) => id)
          .toSorted()
          .join(),
    ),
  };
}

/** The same from the batches as they were given. */
function expectedOf(batches: readonly LeafBatch[]) {
  const sorted = batches.toSorted((a, b) => a.id.compare(b.id));
  const leaves = sorted.flatMap(({ id, hashes, devices }) =>
    Array.from({ length: hashes.length / hashBytes }, (_, index) => ({
      name: `${id.toString('hex')}/${index}`,
      prefix: Buffer.from(hashes).readUInt32BE(index * hashBytes),
      device: devices.toString('hex', index * idBytes, (index + 1) * idBytes),
    })),
  );
  const byDevice = Map.groupBy(leaves, ({ device }) => device);
  return {
    devicesOfLeaves: Object.fromEntries(leaves.map(({ name, device }) => [name, device])),
    leavesOfDevices: Object.fromEntries([...byDevice].map(([device, own]) => [device, own.map(({ name }) => name)])),
    lookUp: (hash: Buffer) =>
      leaves.flatMap(({ name, prefix }) => (prefix === hash.readUInt32BE() ? [name] : [])).sort(),
  };
}

const sourceOf = (facts: RunFacts, blocks: readonly Block[]): MergeSource => ({
  ...facts,

  async *blocks(part) {
    yield* blocks.filter((block) => block.part === part);
  },
});

const leavesOfBatch = fc.array(fc.record({ hash: fc.nat(40), device: fc.nat(12) }), { minLength: 1, maxLength: 12 });
const batchesOfRun = fc.array(leavesOfBatch, { minLength: 1, maxLength: 8 });

function expectEqual(facts: RunFacts, blocks: readonly Block[], batches: readonly LeafBatch[]): void {
  const [found, expected] = [contentsOf(facts, blocks), expectedOf(batches)];
  expect(found.devicesOfLeaves).to.deep.equal(expected.devicesOfLeaves);
  expect(found.leavesOfDevices).to.deep.equal(expected.leavesOfDevices);
  expect(found.isSorted).to.equal(true);
  for (let number = 0; number <= 41; number += 1)
    expect(found.lookUp(hashOf(number))).to.deep.equal(expected.lookUp(hashOf(number)));
  const ids = batches.map(({ id }) => id).toSorted((a, b) => a.compare(b));
  expect(facts).to.deep.equal({
    leaves: Object.keys(expected.devicesOfLeaves).length,
    batches: batches.length,
    devices: Object.keys(expected.leavesOfDevices).length,
    leastBatch: ids[0],
    greatestBatch: ids.at(-1),
  });
}

describe('a run', () => {
  it('has every leaf by hash, by device and by batch', () => {
    fc.assert(
      fc.property(batchesOfRun, (given) => {
        const batches = given.map((leaves, index) => batchOf(index, leaves));
        const { facts, blocks } = packRun(batches);
        expectEqual(facts, blocks, batches);
      }),
      { numRuns: 300 },
    );
  });

  it('that is merged from others equals one of all their batches', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(batchesOfRun, { minLength: 1, maxLength: 5 }), async (runs) => {
        let number = 0;
        const batches = runs.map((run) => run.map((leaves) => batchOf((number += 1), leaves)));
        const sources = batches.map((own) => {
          const { facts, blocks } = packRun(own);
          return sourceOf(facts, blocks);
        });
        const blocks: Block[] = [];
        const facts = await mergeRuns(sources, async (some) => void blocks.push(...some));
        expectEqual(facts, blocks, batches.flat());
        const whole = packRun(batches.flat());
        const order = (list: readonly Block[]) =>
          list.filter(({ part }) => part !== parts.hashes).toSorted((a, b) => a.part - b.part || a.first - b.first);
        expect(order(blocks)).to.deep.equal(order(whole.blocks));
      }),
      { numRuns: 200 },
    );
  });

  it('keeps every leaf when its parts have many blocks', async () => {
    const leaves = Array.from({ length: 1000 }, (_, index) => ({ hash: index, device: index % 300 }));
    const of = (first: number, count: number) =>
      Array.from({ length: count }, (_, batch) =>
        batchOf(
          first + batch,
          leaves.map(({ hash, device }) => ({ hash: hash + (first + batch) * 1000, device: device + batch })),
        ),
      );
    const [early, late] = [of(0, 12), of(12, 9)];
    const sources = [early, late].map((own) => {
      const { facts, blocks } = packRun(own);
      return sourceOf(facts, blocks);
    });
    const blocks: Block[] = [];
    const facts = await mergeRuns(sources, async (some) => void blocks.push(...some));
    const [found, expected] = [contentsOf(facts, blocks), expectedOf([...early, ...late])];
    expect(found.devicesOfLeaves).to.deep.equal(expected.devicesOfLeaves);
    expect(found.leavesOfDevices).to.deep.equal(expected.leavesOfDevices);
    for (let number = 0; number < 21_000; number += 101)
      expect(found.lookUp(hashOf(number))).to.deep.equal(expected.lookUp(hashOf(number)));
    expect(Math.max(...blocks.map(({ data }) => data.length))).to.be.at.most(70_000);
  }).timeout(30_000);
});

// The cache of chunks, over an artifact whose reads are counted.
import { randomBytes } from 'node:crypto';
import { expect } from 'chai';
import { unavailable } from '../../../platform/errors.ts';
import { chunkBytes } from './artifact-store.ts';
import { ChunkCache } from './chunk-cache.ts';

const bytes = randomBytes(4 * chunkBytes + 1000);
const artifact = { tenantId: 'acme', sha256: Buffer.alloc(32, 1), sizeBytes: bytes.length };

describe('cache of chunks', () => {
  let reads: string[];
  /** Bytes of the artifact that are stored. */
  let stored: number;
  let failure: Error | undefined;
  beforeEach(() => {
    reads = [];
    stored = bytes.length;
    failure = undefined;
  });
  const cacheOf = (chunks: number) =>
    new ChunkCache(
      {
        read: async (tenantId, sha256, offset, length) => {
          reads.push(`${tenantId} ${sha256[0]} ${offset / chunkBytes}`);
          await new Promise((resolve) => setImmediate(resolve));
          if (failure) throw failure;
          return Buffer.from(bytes.subarray(offset, Math.min(offset + length, stored)));
        },
      },
      chunks * chunkBytes,
    );

  it('returns every range, whatever it begins and ends with', async () => {
    const cache = cacheOf(10);
    for (const [offset, length] of [
      [0, chunkBytes],
      [chunkBytes, chunkBytes],
      [4 * chunkBytes, 1000],
      [4 * chunkBytes + 999, 1],
      [0, 1],
      [chunkBytes - 1, 2],
      [chunkBytes / 2, chunkBytes],
      [3 * chunkBytes + 1000, chunkBytes],
    ] as const) {
      const range = await cache.range(artifact, offset, length);
      expect(range.equals(bytes.subarray(offset, offset + length)), `${offset} ${length}`).to.equal(true);
    }
  });

  it('reads a chunk once for requests at the same time and after it', async () => {
    const cache = cacheOf(10);
    await Promise.all(Array.from({ length: 100 }, (_, index) => cache.range(artifact, index, 100)));
    await cache.range(artifact, 500, chunkBytes);
    expect(reads).to.deep.equal(['acme 1 0', 'acme 1 1']);
  });

  it('returns a whole chunk without copying it', async () => {
    const cache = cacheOf(10);
    const [first, second] = [await cache.range(artifact, 0, chunkBytes), await cache.range(artifact, 0, chunkBytes)];
    expect(first.buffer).to.equal(second.buffer);
  });

  it('keeps artifacts of the same bytes apart by tenant, and artifacts apart', async () => {
    const cache = cacheOf(10);
    for (const other of [{}, { tenantId: 'globex' }, { sha256: Buffer.alloc(32, 2) }]) {
      await cache.range({ ...artifact, ...other }, 0, 10);
    }
    expect(reads).to.deep.equal(['acme 1 0', 'globex 1 0', 'acme 2 0']);
  });

  it('forgets the chunk that was used least recently once its memory is full', async () => {
    const cache = cacheOf(2);
    for (const chunk of [0, 1, 0, 2, 0, 1]) await cache.range(artifact, chunk * chunkBytes, 10);
    expect(reads.map((read) => read.at(-1))).to.deep.equal(['0', '1', '2', '1']);
  });

  it('reads every time without memory', async () => {
    const cache = cacheOf(0);
    for (let time = 0; time < 2; time += 1) expect(await cache.range(artifact, 0, 10)).to.have.length(10);
    expect(reads).to.have.length(2);
  });

  it('keeps neither a chunk that is not complete yet nor a failure', async () => {
    const cache = cacheOf(10);
    const outcome = () =>
      cache.range(artifact, 0, 10).then(
        ({ length }) => length,
        ({ code }: { code: string }) => code,
      );
    stored = 1000;
    expect(await outcome()).to.equal('UNAVAILABLE');
    stored = bytes.length;
    failure = unavailable('the store of artifacts cannot be read');
    expect(await outcome()).to.equal('UNAVAILABLE');
    failure = undefined;
    expect(await outcome()).to.equal(10);
    expect(reads).to.have.length(3);
  });
});

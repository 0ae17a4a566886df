import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createGunzip, createZstdDecompress, gzipSync, zstdCompressSync } from 'node:zlib';
import { expect } from 'chai';
import { DamagedFile, readCompressedLines } from './compressed-lines.ts';

async function collect(lines: AsyncIterable<string>): Promise<string[]> {
  const collected: string[] = [];
  for await (const line of lines) collected.push(line);
  return collected;
}

describe('lines of a compressed file', () => {
  let folder: string;
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kellet-lines-'));
  });
  after(() => rm(folder, { recursive: true }));

  const formats = [
    ['gzip', gzipSync, createGunzip],
    ['zstd', zstdCompressSync, createZstdDecompress],
  ] as const;
  for (const [name, compress, decompressor] of formats) {
    const read = async (bytes: Buffer) => {
      const path = join(folder, name);
      await writeFile(path, bytes);
      return collect(readCompressedLines(path, decompressor()));
    };
    const failureOf = (bytes: Buffer) =>
      read(bytes).then(
        () => undefined,
        (error: unknown) => error,
      );

    it(`are read as they were written (${name})`, async () => {
      const lines = ['one', '', 'line\u2028and paragraph\u2029separators\r', 'ü'.repeat(200_000), '"\u0085"'];
      expect(await read(compress(Buffer.from(lines.map((line) => `${line}\n`).join(''))))).to.deep.equal(lines);
      expect(await read(compress(Buffer.alloc(0)))).to.deep.equal([]);
    });

    it(`are not read to the end if the file is damaged (${name})`, async () => {
      const whole = compress(Buffer.from('a line\n'.repeat(1000)));
      const changed = Buffer.from(whole);
      changed[changed.length - 3]! ^= 0xff;
      const damaged = [whole.subarray(0, -4), changed, compress(Buffer.from('a line\nno end')), Buffer.from('plain\n')];
      for (const bytes of damaged) expect(await failureOf(bytes)).to.be.instanceOf(DamagedFile);
    });
  }

  it('are not read if there is no file', async () => {
    const reading = collect(readCompressedLines(join(folder, 'none'), createGunzip()));
    const error = await reading.catch((failure: unknown) => failure);
    expect(error).to.have.property('code', 'ENOENT');
  });
});

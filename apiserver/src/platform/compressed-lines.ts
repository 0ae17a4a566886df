// Writes and reads the lines of compressed files.
import { once } from 'node:events';
import { createReadStream, createWriteStream } from 'node:fs';
import type { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';

/**
 * Writes a new file durably, which only its owner can read. `work` gets a function that writes lines, each with its
 * line feed, and resolves when there is room for more. Throws if the file exists; a file that was begun stays.
 */
export async function writeCompressedLines<T>(
  path: string,
  compress: Transform,
  work: (write: (lines: string) => Promise<void>) => Promise<T>,
): Promise<T> {
  const written = pipeline(compress, createWriteStream(path, { flags: 'wx', mode: 0o600, flush: true }));
  written.catch(() => undefined);
  try {
    const result = await work(async (lines) => {
      // A failed write destroys the stream, which then never drains.
      if (!compress.write(lines)) await Promise.race([once(compress, 'drain'), written]);
    });
    compress.end();
    await written;
    return result;
  } catch (error) {
    compress.destroy();
    await written.catch(() => undefined);
    throw error;
  }
}

/** A file that cannot be decompressed, or that ends within a line. */
export class DamagedFile extends Error {
  constructor(path: string, cause?: unknown) {
    super(`${path} is damaged`, { cause });
  }
}

/**
 * Yields the lines of a file, which end at line feeds alone: readline would also split them at U+2028. Throws DamagedFile,
 * or the error of the file system.
 */
export async function* readCompressedLines(path: string, decompress: Transform): AsyncGenerator<string> {
  const source = createReadStream(path);
  let fileError: Error | undefined;
  source.on('error', (error) => {
    fileError = error;
    decompress.destroy(error);
  });
  // The beginning of a line that spans several pieces.
  const begun: string[] = [];
  try {
    for await (const text of source.pipe(decompress).setEncoding('utf8') as AsyncIterable<string>) {
      const [first = '', ...others] = text.split('\n');
      begun.push(first);
      for (const next of others) {
        yield begun.splice(0).join('');
        begun.push(next);
      }
    }
  } catch (error) {
    throw fileError ?? new DamagedFile(path, error);
  } finally {
    source.destroy();
    decompress.destroy();
  }
  if (begun.join('') !== '') throw new DamagedFile(path);
}

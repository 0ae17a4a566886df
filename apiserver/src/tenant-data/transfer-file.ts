// The files of a tenant: writes and reads their lines, compressed with zstd.
import { rename, rm } from 'node:fs/promises';
import { createZstdCompress, createZstdDecompress } from 'node:zlib';
import { DamagedFile, readCompressedLines, writeCompressedLines } from '../platform/compressed-lines.ts';
import { TransferError } from './tenant-export.ts';
import type { Line } from './transfer-format.ts';

/**
 * Writes a file, which only its owner can read and which appears under its name when it is complete. `work` gets a function
 * that writes a line and resolves when there is room for more.
 */
export async function writeLines<T, L = Line>(
  path: string,
  work: (write: (line: L) => Promise<void>) => Promise<T>,
): Promise<T> {
  const partial = `${path}.partial`;
  // A file or link that is there, whether of an interrupted run or of another user, would keep its mode and owner.
  await rm(partial, { force: true });
  try {
    const result = await writeCompressedLines(partial, createZstdCompress(), (write) =>
      work((line) => write(`${JSON.stringify(line)}\n`)),
    );
    await rename(partial, path);
    return result;
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

/** Yields the lines of a file. Throws TransferError if it cannot be read, is not such a file, or damaged. */
export async function* readLines(path: string): AsyncGenerator<Line> {
  try {
    for await (const line of readCompressedLines(path, createZstdDecompress())) yield JSON.parse(line) as Line;
  } catch (cause) {
    if (cause instanceof SyntaxError || cause instanceof DamagedFile) {
      throw new TransferError('the file is damaged', { cause });
    }
    // The file is read inside a transaction, which would take ENOENT for a database that is away.
    if (cause instanceof Error && 'syscall' in cause) {
      throw new TransferError(`the file cannot be read: ${cause.message}`, { cause });
    }
    throw cause;
  }
}

// The append-only file with all of devchain's events, one JSON line each, in order. A line is valid once its newline is
// on disk; an incomplete last line is truncated on opening.
import { closeSync, fdatasyncSync, ftruncateSync, mkdirSync, openSync, readFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

/** An open journal. It owns its file descriptor until `close`. */
export interface Journal<Entry> {
  /** Writes the entries at once and returns when they are on disk. */
  append(entries: readonly Entry[]): void;
  close(): void;
}

/**
 * Opens (or creates) `journal.jsonl` in a folder, readable only by its owner, and passes on its entries.
 * Throws an Error when a complete line is not JSON: then the file is damaged, not torn, and must not be written to.
 */
export function openJournal<Entry>(directory: string): { journal: Journal<Entry>; entries: Entry[] } {
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const path = join(directory, 'journal.jsonl');
  const file = openSync(path, 'a+', 0o600);
  const bytes = readFileSync(path);
  const end = bytes.lastIndexOf(0x0a) + 1;
  if (end < bytes.length) ftruncateSync(file, end);
  const lines = bytes.toString('utf8', 0, end).split('\n').slice(0, -1);
  const entries = lines.map((line, index) => {
    try {
      return JSON.parse(line) as Entry;
    } catch {
      throw new Error(`${path} is damaged in line ${index + 1}`);
    }
  });
  return {
    entries,
    journal: {
      append(added) {
        if (added.length === 0) return;
        const block = Buffer.from(added.map((entry) => `${JSON.stringify(entry)}\n`).join(''));
        let written = 0;
        while (written < block.length) written += writeSync(file, block, written);
        fdatasyncSync(file);
      },
      close: () => closeSync(file),
    },
  };
}

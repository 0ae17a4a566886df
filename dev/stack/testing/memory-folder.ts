// A folder in memory for the data of test servers. PostgreSQL makes some 800 files for each database of a test, which takes
// ten times as long on a disk.
import { mkdtempSync, readdirSync, rmSync, statfsSync } from 'node:fs';
import { freemem, tmpdir } from 'node:os';
import { join } from 'node:path';
import { processIdentity } from '../processes/process-table.ts';

const memory = '/dev/shm';
const prefix = 'kellet-test-';
/** Less is left to the tests themselves. */
const leastBytes = 6 * 1024 ** 3;

/** Creates a folder for this process: in memory where much of it is free, otherwise among the temporary files. */
export function makeMemoryFolder(): string {
  const parent = hasMemory() ? memory : tmpdir();
  if (parent === memory) removeLeftovers();
  return mkdtempSync(join(parent, `${prefix}${process.pid}-`));
}

function hasMemory(): boolean {
  try {
    const { bavail, bsize } = statfsSync(memory);
    return Math.min(bavail * bsize, freemem()) >= leastBytes;
  } catch {
    // There is none, as on macOS.
    return false;
  }
}

/** Removes the folders of processes that were killed: what is in memory would stay there. */
function removeLeftovers(): void {
  for (const name of readdirSync(memory)) {
    const pid = Number(/^kellet-test-(\d+)-/.exec(name)?.[1] ?? 'NaN');
    if (Number.isNaN(pid) || processIdentity(pid) !== undefined) continue;
    rmSync(join(memory, name), { recursive: true, force: true });
  }
}

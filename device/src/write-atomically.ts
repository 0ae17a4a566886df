// Replaces a file in one step, so that a crash leaves the old content or the new one.
import fs from 'node:fs';
import path from 'node:path';

/** Writes a file that only its owner may read. With `sync` it is on the disk when this returns. */
export function writeAtomically(file: string, content: string, { sync = true }: { sync?: boolean } = {}): void {
  const temporary = `${file}.new`;
  fs.rmSync(temporary, { force: true });
  const handle = fs.openSync(temporary, 'wx', 0o600);
  try {
    fs.writeFileSync(handle, content);
    if (sync) fs.fsyncSync(handle);
  } finally {
    fs.closeSync(handle);
  }
  fs.renameSync(temporary, file);
  if (sync) syncFolder(path.dirname(file));
}

/** Makes the names of a folder's files durable. Windows has no such call. */
function syncFolder(folder: string): void {
  if (process.platform === 'win32') return;
  const handle = fs.openSync(folder, 'r');
  try {
    fs.fsyncSync(handle);
  } finally {
    fs.closeSync(handle);
  }
}

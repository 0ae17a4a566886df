// Objects as files of a folder, which all replicas share.
import { randomBytes } from 'node:crypto';
import { type FileHandle, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Batches } from '../concurrency/keyed-batches.ts';
import { MissingObjectError, type ObjectStore, StoreFullError } from './object-store.ts';

const maximumListed = 1000;

const codeOf = (error: unknown): unknown => (error instanceof Error && 'code' in error ? error.code : undefined);

/** A folder. */
export class FolderStore implements ObjectStore {
  private readonly folder: string;
  /** Syncs of folders, by folder: files that are put at a time share those that begin after their names are there. */
  private readonly syncs = new Batches<undefined, undefined>(Infinity, syncOnce);

  constructor(folder: URL) {
    this.folder = fileURLToPath(folder);
  }

  async put(name: string, bytes: Buffer): Promise<void> {
    const path = join(this.folder, name);
    // Its name appears once it is complete, whatever kills the process or the machine.
    const partial = `${path}.${randomBytes(6).toString('hex')}.partial`;
    try {
      await mkdir(dirname(path), { recursive: true });
      await withFile(partial, 'wx', async (file) => {
        await file.writeFile(bytes);
        await file.sync();
      });
      await rename(partial, path);
      await this.syncFolders(path);
    } catch (error) {
      await rm(partial, { force: true }).catch(() => undefined);
      throw ['ENOSPC', 'EDQUOT'].includes(String(codeOf(error))) ? new StoreFullError(error) : error;
    }
  }

  async read(name: string, offset: number, length: number): Promise<Buffer> {
    try {
      return await withFile(join(this.folder, name), 'r', async (file) => {
        const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(length), 0, length, offset);
        if (bytesRead !== length) throw new MissingObjectError(`${name}, bytes ${offset} to ${offset + length - 1}`);
        return buffer;
      });
    } catch (error) {
      throw codeOf(error) === 'ENOENT' ? new MissingObjectError(name, error) : error;
    }
  }

  async move(from: string, to: string): Promise<void> {
    const path = join(this.folder, to);
    await mkdir(dirname(path), { recursive: true });
    try {
      await rename(join(this.folder, from), path);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') throw error;
      await stat(path).catch((missing: unknown) => {
        throw codeOf(missing) === 'ENOENT' ? new MissingObjectError(from, error) : missing;
      });
    }
    await this.syncFolders(path);
  }

  async remove(name: string): Promise<void> {
    await rm(join(this.folder, name), { recursive: true, force: true });
  }

  async list(name: string, after: string): Promise<string[]> {
    const files = await readdir(join(this.folder, name)).catch((error: unknown) => {
      if (codeOf(error) === 'ENOENT') return [];
      throw error;
    });
    const names = files.map((file) => `${name}/${file}`).filter((one) => one > after);
    return names.sort().slice(0, maximumListed);
  }

  close(): void {}

  /**
   * Makes the name of a file durable: syncs its folders up to the root. Any of them may have been created just now, also by a process
   * that has not synced it, or was killed before it could.
   */
  private async syncFolders(path: string): Promise<void> {
    const folders: string[] = [];
    for (let folder = dirname(path); ; folder = dirname(folder)) {
      folders.push(folder);
      if (folder.length <= this.folder.length) break;
    }
    await Promise.all(folders.map((folder) => this.syncs.add(folder, undefined)));
  }
}

/** Syncs a folder once for all that wait for it. */
async function syncOnce(folder: string, waiting: readonly undefined[]): Promise<readonly undefined[]> {
  await withFile(folder, 'r', (file) => file.sync());
  return waiting;
}

async function withFile<T>(path: string, flags: string, work: (file: FileHandle) => Promise<T>): Promise<T> {
  const file = await open(path, flags);
  try {
    return await work(file);
  } finally {
    await file.close();
  }
}

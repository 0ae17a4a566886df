// Paths of the local stack: the checkout, its state folder, the user's cache of built programs.
import { createHash } from 'node:crypto';
import { chmod, lstat, mkdir, rm, stat, symlink } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join, resolve } from 'node:path';

/** The root of this checkout. */
export const checkout = resolve(import.meta.dirname, '../..');

/** The state folder of `make dev`; secrets in it are readable only by their owner. */
export const defaultStateFolder = join(checkout, '.kellet');

/**
 * The folder of built programs, shared by all checkouts: `$KELLET_CACHE`, else `$XDG_CACHE_HOME/kellet`, else
 * `~/.cache/kellet`.
 */
export function cacheFolder(environment: NodeJS.ProcessEnv = process.env): string {
  if (environment.KELLET_CACHE) return resolve(environment.KELLET_CACHE);
  return join(environment.XDG_CACHE_HOME || join(homedir(), '.cache'), 'kellet');
}

/** Creates a folder that only its owner may enter. */
export async function makePrivateFolder(folder: string): Promise<string> {
  await mkdir(folder, { recursive: true });
  await chmod(folder, 0o700);
  return folder;
}

/**
 * Reports whether every folder above `path` may be searched by any user, so that a process of another user can reach
 * it.
 */
export async function isSearchableByOthers(path: string): Promise<boolean> {
  for (let folder = dirname(resolve(path)); ; folder = dirname(folder)) {
    const found = await stat(folder).catch(() => undefined);
    if (found && (found.mode & 0o001) === 0) return false;
    if (folder === dirname(folder)) return true;
  }
}

/**
 * Returns the folder outside the checkout that replaces `path` when another user must reach it and cannot. It is named
 * by a hash of `path`, is in /var/tmp (which survives a reboot), and is rejected if it belongs to another user.
 */
export function substituteFolder(path: string): string {
  return join('/var/tmp', `kellet-${createHash('sha256').update(resolve(path)).digest('hex').slice(0, 16)}`);
}

/** Returns `path` if other users can reach it, else its substitute, created with mode 0711 and linked from `path`. */
export async function reachableFolder(path: string): Promise<string> {
  if (await isSearchableByOthers(path)) {
    await mkdir(path, { recursive: true, mode: 0o711 });
    await chmod(path, 0o711);
    return path;
  }
  const folder = substituteFolder(path);
  await mkdir(folder, { mode: 0o711 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  const found = await lstat(folder);
  if (!found.isDirectory() || found.uid !== process.getuid?.()) {
    throw new Error(`${folder} is not a folder of this user: remove it, or move the checkout to a public folder`);
  }
  await chmod(folder, 0o711);
  await mkdir(dirname(path), { recursive: true });
  await symlink(folder, path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
    if (!(await lstat(path)).isSymbolicLink()) throw new Error(`${path} can no longer be reached by its server's user`);
  });
  return folder;
}

/** Removes a folder and, if it is a link, its substitute too. */
export async function removeReachableFolder(path: string): Promise<void> {
  const linked = await lstat(path).then(
    (found) => found.isSymbolicLink(),
    () => false,
  );
  if (linked) await rm(substituteFolder(path), { recursive: true, force: true });
  await rm(path, { recursive: true, force: true });
}

// A lock between processes that the kernel releases when its holder exits, whatever the cause.
import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';

/** Releases the lock. */
export type Release = () => void;

/** SQLite's result code for a lock held by another connection. */
const busy = 5;

/**
 * Takes the lock at `path` (an SQLite file, whose exclusive transaction is the lock), or returns undefined if another
 * process holds it.
 */
export function tryLock(path: string): Release | undefined {
  mkdirSync(dirname(path), { recursive: true });
  const database = new DatabaseSync(path, { timeout: 0 });
  try {
    database.exec('BEGIN EXCLUSIVE');
  } catch (error) {
    database.close();
    if ((error as { errcode?: number }).errcode === busy) return undefined;
    throw error;
  }
  return () => database.close();
}

/** Takes the lock, waiting as long as needed; `onWait` is called at once and every 30 seconds with the seconds so far. */
export async function lock(path: string, onWait: (seconds: number) => void, signal?: AbortSignal): Promise<Release> {
  const started = performance.now();
  for (let attempt = 0; ; attempt++) {
    const release = tryLock(path);
    if (release) return release;
    if (attempt % 150 === 0) onWait(Math.round((performance.now() - started) / 1000));
    await sleep(200, undefined, signal ? { signal } : {});
  }
}

// The retention of cold files: those whose points are all past it are superseded, and removed an hour later.
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database } from '../../platform/database/database.ts';
import { supersedeExpired } from './cold-file-store.ts';

const filesAtOnce = 500;

/** Supersedes files whose points are all past the retention of their tenant. */
export function expireColdFiles(database: Database, signal: AbortSignal): Promise<void> {
  return repeatWhileFull(filesAtOnce, signal, (limit) => database.system((tx) => supersedeExpired(tx, limit)));
}

// Removes the local state of this checkout (`make clean`): .kellet, and what stands in for it elsewhere.
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { tryLock } from '../e2e/stack/file-lock.ts';
import { defaultStateFolder, substituteFolder } from '../e2e/stack/paths.ts';
import { endRecordedProcesses } from '../e2e/stack/process-table.ts';

const release = tryLock(join(defaultStateFolder, 'lock'));
if (!release) {
  console.error('the local stack of this checkout is running: stop it first (Ctrl-C in its terminal)');
  process.exit(1);
}
await endRecordedProcesses(join(defaultStateFolder, 'run'));
await rm(substituteFolder(join(defaultStateFolder, 'postgres')), { recursive: true, force: true });
release();
await rm(defaultStateFolder, { recursive: true, force: true });
console.log(`removed ${defaultStateFolder}`);

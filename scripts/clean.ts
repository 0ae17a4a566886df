// Removes the local state of this checkout (`make clean`): .kellet and its equivalents in other folders.
import { globSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { kubernetesFolder } from '../dev/stack/cluster/cluster.ts';
import { deleteKind } from '../dev/stack/cluster/kind.ts';
import { defaultStateFolder, removeReachableFolder } from '../dev/stack/paths.ts';
import { tryLock } from '../dev/stack/processes/file-lock.ts';
import { endRecordedProcesses } from '../dev/stack/processes/process-table.ts';

// Besides the state of `make dev` there may be that of test runs and demos, in separate folders.
const stateFolders = globSync('{,*/,*/*/}lock', { cwd: defaultStateFolder }).map((path) =>
  join(defaultStateFolder, dirname(path)),
);
const releases = stateFolders.map((folder) => {
  const release = tryLock(join(folder, 'lock'));
  if (!release) {
    console.error(`a stack is running on ${folder}: stop it first`);
    process.exit(1);
  }
  return release;
});
for (const folder of stateFolders) {
  await endRecordedProcesses(join(folder, 'run'));
  await deleteKind(kubernetesFolder(folder));
  await removeReachableFolder(join(folder, 'postgres'));
}
for (const release of releases) release();
await rm(defaultStateFolder, { recursive: true, force: true });
console.log(`removed ${defaultStateFolder}`);

// The commands kellet-apiserver backup and kellet-apiserver restore.
import { resolve } from 'node:path';
import { type Config, s3SettingsOf } from '../config/config.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { Database } from '../platform/database/database.ts';
import { pendingMigrations } from '../platform/database/migrate.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { backUp } from './backup.ts';
import { restore, type RestoreTarget } from './restore.ts';

export const backupUsage = `usage: kellet-apiserver backup DIR

  Writes everything durable into a folder that does not exist or is empty: all tables in one snapshot, the artifacts and the
  cold files. May run beside a running installation; points do not turn cold meanwhile. The secrets of the configuration are not
  in it. Exit code: 0 done, 1 failed, 2 bad usage.`;

export const restoreUsage = `usage: kellet-apiserver restore DIR

  Restores a backup into an empty database, which it migrates, and into the configured stores. Refuses a database with rows, and
  a store with other objects of the same names. Start kellet-apiserver afterwards, with the same secrets as before.
  Exit code: 0 done, 1 failed, 2 bad usage.`;

/** Dependencies of the commands. */
export interface BackupCommandParts {
  readonly readConfig: () => Config;
  readonly logger: Logger;
  readonly write: (line: string) => void;
  readonly note: (line: string) => void;
}

/** Runs `kellet-apiserver backup …` and returns the exit code: 0 done, 1 failed, 2 bad usage. */
export const runBackupCommand = (args: readonly string[], parts: BackupCommandParts): Promise<number> =>
  run(args, parts, backupUsage, async (target, folder) => {
    const pending = await pendingMigrations(target.database);
    if (pending.length > 0) throw new Error(`the database lacks ${pending.length} migrations, from ${pending[0]!} on`);
    await backUp(target, folder);
  });

/** Runs `kellet-apiserver restore …` and returns the exit code: 0 done, 1 failed, 2 bad usage. */
export const runRestoreCommand = (args: readonly string[], parts: BackupCommandParts): Promise<number> =>
  run(args, parts, restoreUsage, restore);

async function run(
  args: readonly string[],
  { readConfig, logger, write, note }: BackupCommandParts,
  usage: string,
  work: (target: RestoreTarget, folder: string) => Promise<void>,
): Promise<number> {
  const [folder, ...rest] = args;
  if (folder === undefined || folder === '' || folder.startsWith('-') || rest.length > 0) {
    write(usage);
    return 2;
  }
  const config = readConfig();
  const database = new Database(config.databaseUrl, logger, {
    directUrl: config.databaseDirectUrl,
    maximumConnections: 2,
  });
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  try {
    await work({ database, cold: cold.store, artifacts, logger, note }, resolve(folder));
    return 0;
  } catch (error) {
    note(`kellet-apiserver: ${error instanceof Error ? error.message : String(error)}`);
    return 1;
  } finally {
    artifacts.close();
    cold.store?.close();
    await database.close();
  }
}

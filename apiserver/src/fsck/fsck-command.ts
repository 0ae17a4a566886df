// The command kellet-apiserver fsck.
import { type Config, s3SettingsOf } from '../config/config.ts';
import { ArtifactReader } from '../device-link/ota/artifacts/artifact-reader.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { Database } from '../platform/database/database.ts';
import { pendingMigrations } from '../platform/database/migrate.ts';
import { nilId } from '../platform/ids.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { isTenant } from '../policies/tenant-reader.ts';
import { listLiveFiles } from '../telemetry/cold/cold-file-store.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { fsck, type Progress, type Recheck, type Report } from './fsck.ts';

export const fsckUsage = `usage: kellet-apiserver fsck [--tenant TENANT_ID] [--json]

  Reads everything that is stored, of one tenant or of all, and prints what does not hold: points, batches,
  transactions, coins, proofs, headers, cold files, artifacts, latest values, numbers of devices, sums of limits and
  audit logs. Changes nothing, and may run beside a running installation. Progress is printed on standard error.
  Exit code: 0 clean, 1 something is broken, 2 bad usage, 3 cannot tell.`;

/** Dependencies of the command. */
export interface FsckCommandParts {
  readonly readConfig: () => Config;
  readonly logger: Logger;
  readonly write: (line: string) => void;
  /** Prints a line of progress, or why the check could not run. */
  readonly note: (line: string) => void;
  readonly recheck?: Recheck;
}

const progressMilliseconds = 2000;

/** Runs `kellet-apiserver fsck …` and returns the exit code, as in the usage. */
export async function runFsckCommand(args: readonly string[], parts: FsckCommandParts): Promise<number> {
  const options = parseArguments(args);
  if (!options) {
    parts.write(fsckUsage);
    return 2;
  }
  try {
    const config = parts.readConfig();
    const database = new Database(config.databaseUrl, parts.logger, {
      directUrl: config.databaseDirectUrl,
      maximumConnections: 3,
    });
    try {
      return await check(database, config, options, parts);
    } finally {
      await database.close();
    }
  } catch (error) {
    parts.note(`kellet-apiserver: cannot tell: ${error instanceof Error ? error.message : String(error)}`);
    return 3;
  }
}

interface Options {
  readonly tenantId: string | undefined;
  readonly isJson: boolean;
}

function parseArguments(args: readonly string[]): Options | undefined {
  const words = args.flatMap((word) => (word.startsWith('--tenant=') ? ['--tenant', word.slice(9)] : [word]));
  const at = words.indexOf('--tenant');
  const [, tenantId] = at < 0 ? [] : words.splice(at, 2);
  if (at >= 0 && !tenantId) return undefined;
  const isJson = words.length === 1 && words[0] === '--json';
  return words.length === 0 || isJson ? { tenantId, isJson } : undefined;
}

async function check(database: Database, config: Config, options: Options, parts: FsckCommandParts): Promise<number> {
  const { tenantId, isJson } = options;
  const { logger, write, note } = parts;
  const pending = await pendingMigrations(database);
  if (pending.length > 0) throw new Error(`the database lacks ${pending.length} migrations, from ${pending[0]!} on`);
  if (tenantId !== undefined && !(await database.systemRead((tx) => isTenant(tx, tenantId)))) {
    note(`kellet-apiserver: there is no tenant ${tenantId}`);
    return 2;
  }
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  const stores = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  try {
    const files = await database.systemRead((tx) => listLiveFiles(tx, tenantId, nilId, 1));
    if (!cold.store && files.length > 0) throw new Error('KELLET_COLD_URL is not set, but there are cold files');
    const artifacts = new ArtifactReader(database, stores);
    const { batchSeconds } = config;
    const checked = { database, files: cold.files, artifacts, tenantId, batchSeconds };
    const report = await fsck(checked, printed(note), parts.recheck);
    if (isJson) write(JSON.stringify(toJson(report)));
    else for (const line of toText(report)) write(line);
    return report.broken.length === 0 ? 0 : 1;
  } finally {
    stores.close();
    cold.store?.close();
  }
}

function printed(note: (line: string) => void): Progress {
  let printedAt = Date.now();
  return (phase, checked) => {
    if (Date.now() < printedAt + progressMilliseconds) return;
    printedAt = Date.now();
    note(`checking ${phase}: ${countsOf(checked)}`);
  };
}

const countsOf = (checked: Report['checked']): string =>
  Object.entries(checked)
    .flatMap(([name, count]) => (count > 0 ? [`${count} ${name.replaceAll('_', ' ')}`] : []))
    .join(', ') || 'nothing yet';

const toJson = ({ checked, broken }: Report): unknown => ({
  clean: broken.length === 0,
  checked,
  broken: broken.map(({ kind, id, tenantId, message }) => ({ kind, id, tenant_id: tenantId, message })),
});

const toText = ({ checked, broken }: Report): string[] => [
  ...broken.map(({ kind, id, tenantId, message }) => {
    const owner = tenantId === '' ? '' : ` of the tenant ${tenantId}`;
    return `broken: ${kind.replaceAll('_', ' ')} ${id}${owner}: ${message}`;
  }),
  `checked: ${countsOf(checked)}`,
  broken.length === 0 ? 'clean' : `${broken.length} broken`,
];

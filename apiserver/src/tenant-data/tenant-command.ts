// The command kellet-apiserver tenant: exports and imports a tenant, writes its proof bundles, and purges a deleted one.
import type { ProofBundle } from '@kellet/verify';
import { type Config, s3SettingsOf } from '../config/config.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import { Broker } from '../platform/events/broker.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { ColdWorkError } from '../telemetry/cold/cold-work.ts';
import { UnreadableFileError } from '../telemetry/read/batch-points.ts';
import { tenantIdForm } from '../tenants/tenant-settings.ts';
import { type BundleCounts, ReorganisationError, TenantBundles } from '../verifier/tenant-bundles.ts';
import { NotPurgedError, Purge } from './purge.ts';
import { ResealError } from './reseal.ts';
import { type PurgeKubernetes, ResourcePurge } from './resource-purge.ts';
import { mustStillStand, settleMilliseconds, standstill } from './standstill.ts';
import { exportTenant, mustHaveData, TransferError } from './tenant-export.ts';
import { importTenant } from './tenant-import.ts';
import { readLines, writeLines } from './transfer-file.ts';

export const tenantUsage = `usage: kellet-apiserver tenant export TENANT_ID --to FILE [--serving]
       kellet-apiserver tenant bundles TENANT_ID --to FILE
       kellet-apiserver tenant import TENANT_ID --from FILE
       kellet-apiserver tenant purge TENANT_ID [--now]

  export  writes all data of a tenant to a file: rows, artifacts and cold files, as they are at one moment;
          a tenant that is neither suspended nor deleted is refused: --serving exports it without what is accepted meanwhile
  bundles writes the proof bundle of every anchored point whose values are retained, a line of JSON each, compressed with zstd:
          kellet-verify bundles FILE verifies them without this installation; each has 6 block headers at most, where
          verify/hash gives up to 144, and takes a few kilobytes before it is compressed
  import  reads the file of an export into this installation, which must not have the tenant yet
  purge   deletes all data of a deleted tenant whose period of grace is over; --now does not wait for that`;

const progressMilliseconds = 5000;
const refusals = [NotPurgedError, TransferError, ResealError, ColdWorkError, UnreadableFileError, ReorganisationError];
/** How long to wait for the broker, whose events are dropped by age anyway. */
const brokerMilliseconds = 10_000;

/** Dependencies of the command. */
export interface TenantCommandParts {
  readonly config: Config;
  /** Already migrated. */
  readonly database: Database;
  readonly logger: Logger;
  readonly audit: Pick<AuditTrail, 'within'>;
  readonly openKubernetes: () => PurgeKubernetes & { close(): Promise<void> };
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver tenant …` and returns the exit code: 0 when done, 1 for a failure, 2 for bad usage. */
export async function runTenantCommand(args: readonly string[], parts: TenantCommandParts): Promise<number> {
  const words = args.flatMap((word) =>
    /^--(to|from)=/.test(word) ? [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)] : [word],
  );
  const [verb, tenantId = '', flag, file, ...rest] = words;
  try {
    const isServing = verb === 'export' && rest.length === 1 && rest[0] === '--serving';
    if (tenantIdForm.test(tenantId) && (rest.length === 0 || isServing)) {
      if (verb === 'export' && flag === '--to' && file) return await exportTo(file, tenantId, isServing, parts);
      if (verb === 'bundles' && flag === '--to' && file && !isServing) return await bundlesTo(file, tenantId, parts);
      if (verb === 'import' && flag === '--from' && file) return await importFrom(file, tenantId, parts);
      if (verb === 'purge' && (flag === undefined || flag === '--now') && file === undefined) {
        return await purge(tenantId, flag === '--now', parts);
      }
    }
  } catch (error) {
    if (!refusals.some((refusal) => error instanceof refusal)) throw error;
    parts.write((error as Error).message);
    return 1;
  }
  parts.write(tenantUsage);
  return 2;
}

async function exportTo(
  file: string,
  tenantId: string,
  isServing: boolean,
  { config, database, logger, write }: TenantCommandParts,
): Promise<number> {
  const waiting = (seconds: number): void =>
    write(`waiting ${seconds} s for requests that began before the suspension`);
  const since = isServing ? undefined : await standstill(database, tenantId, { settle: settleMilliseconds, waiting });
  const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  try {
    const rows = await writeLines(file, async (writeLine) => {
      const exported = await exportTenant(
        {
          ...{ database, artifacts, coldStore: cold.store, controlSecret: config.controlSecret, write: writeLine },
          exported: (table, count) => void (count > 0 && write(`${table}: ${count} rows`)),
          waiting: () => write('waiting for another process that turns points cold'),
        },
        tenantId,
      );
      if (since !== undefined) await mustStillStand(database, tenantId, since);
      return exported;
    });
    write(`the tenant ${tenantId} is exported to ${file}: ${rows} rows`);
    return 0;
  } finally {
    artifacts.close();
    cold.store?.close();
  }
}

async function bundlesTo(
  file: string,
  tenantId: string,
  { config, database, logger, write }: TenantCommandParts,
): Promise<number> {
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  let written = 0;
  const progress = setInterval(() => write(`${written} bundles written`), progressMilliseconds);
  try {
    const counts = await writeLines(file, async (writeLine: (bundle: ProofBundle) => Promise<void>) => {
      await mustHaveData(database, tenantId);
      const bundles = new TenantBundles(
        {
          ...{ database, cold: cold.files },
          write: (bundle) => {
            written += 1;
            return writeLine(bundle);
          },
        },
        tenantId,
      );
      const made = await bundles.run();
      // A purge that has begun meanwhile has taken some away.
      await mustHaveData(database, tenantId);
      return made;
    });
    write(bundlesSummary(file, counts));
    return 0;
  } finally {
    clearInterval(progress);
    cold.store?.close();
  }
}

/** Says how many bundles were written, and why points have none. */
function bundlesSummary(file: string, { written, pending, expired, damaged }: BundleCounts): string {
  const reasons = [
    pending > 0 && `${pending} not mined yet`,
    expired > 0 && `${expired} whose values are no longer retained`,
    damaged > 0 && `${damaged} whose values are damaged (see kellet-apiserver fsck)`,
  ].filter((reason) => reason !== false);
  const without =
    reasons.length === 0 ? '' : `; ${pending + expired + damaged} points have no bundle: ${reasons.join(', ')}`;
  return `${written} bundles are written to ${file}${without}`;
}

async function importFrom(
  file: string,
  tenantId: string,
  { config, database, logger, write }: TenantCommandParts,
): Promise<number> {
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  try {
    const rows = await importTenant(
      {
        ...{ database, coldStore: cold.store, controlSecret: config.controlSecret },
        sourceControlSecret: config.sourceControlSecret || undefined,
        imported: (table, count) => void (count > 0 && write(`${table}: ${count} rows`)),
      },
      tenantId,
      readLines(file),
    );
    write(`the tenant ${tenantId} is imported: ${rows} rows; apply its manifests to the cluster`);
    return 0;
  } finally {
    cold.store?.close();
  }
}

async function purge(tenantId: string, now: boolean, parts: TenantCommandParts): Promise<number> {
  const { config, database, logger, write } = parts;
  const kubernetes = parts.openKubernetes();
  const broker = new Broker(config.natsUrl, logger);
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  const stopping = new AbortController();
  const stop = (): void => stopping.abort(new NotPurgedError('interrupted: run the command again to continue'));
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.once(signal, stop);
  let rows = 0;
  let last = '';
  const step = (text: string): void => {
    if (text !== last) write(text);
    last = text;
  };
  const progress = setInterval(() => write(`${rows} rows deleted`), progressMilliseconds);
  try {
    const resources = new ResourcePurge(kubernetes, logger);
    const connected = new Promise<void>((resolve) => broker.whenConnected(() => resolve()));
    const whenConnected = {
      purgeTenant: async (id: string) => {
        await Promise.race([connected, sleep(brokerMilliseconds)]);
        await broker.purgeTenant(id);
      },
    };
    const deleted = (_table: string, count: number): void => void (rows += count);
    const work = new Purge({
      ...{ database, logger, audit: parts.audit, resources, artifacts, cold, broker: whenConnected, deleted, step },
    });
    const total = await work.purgeTenant(tenantId, now, stopping.signal);
    write(`the data of the tenant ${tenantId} is purged: ${total} rows`);
    return 0;
  } finally {
    clearInterval(progress);
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.off(signal, stop);
    artifacts.close();
    cold.store?.close();
    await broker.close();
    await kubernetes.close();
  }
}

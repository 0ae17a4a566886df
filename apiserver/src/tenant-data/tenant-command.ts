// The command kellet-apiserver tenant: purges a deleted tenant.
import { s3SettingsOf, type Config } from '../config/config.ts';
import { ArtifactStores } from '../device-link/ota/packages/artifact-stores.ts';
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import { Broker } from '../platform/events/broker.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { NotPurgedError, Purge } from './purge.ts';
import { ResourcePurge, type PurgeKubernetes } from './resource-purge.ts';

export const tenantUsage = `usage: kellet-apiserver tenant purge TENANT_ID [--now]

  purge   deletes all data of a deleted tenant whose period of grace is over; --now does not wait for that`;

const progressMilliseconds = 5000;
/** How long to wait for the broker, whose events are dropped by age anyway. */
const brokerMilliseconds = 10_000;

/** Dependencies of the command. */
export interface TenantCommandParts {
  readonly config: Config;
  /** Already migrated. */
  readonly database: Database;
  readonly logger: Logger;
  readonly openKubernetes: () => PurgeKubernetes & { close(): Promise<void> };
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver tenant …` and returns the exit code: 0 when done, 1 for a failure, 2 for bad usage. */
export async function runTenantCommand(args: readonly string[], parts: TenantCommandParts): Promise<number> {
  const [verb, tenantId, ...rest] = args;
  const isNow = rest.length === 1 && rest[0] === '--now';
  if (verb !== 'purge' || !tenantId || tenantId.startsWith('-') || (rest.length > 0 && !isNow)) {
    parts.write(tenantUsage);
    return 2;
  }
  return purge(tenantId, isNow, parts);
}

async function purge(tenantId: string, now: boolean, parts: TenantCommandParts): Promise<number> {
  const { config, database, logger, write } = parts;
  const kubernetes = parts.openKubernetes();
  const broker = new Broker(config.natsUrl, logger);
  const cold = openColdStorage({ config, logger, metrics: createMetrics() });
  const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  const stopping = new AbortController();
  const stop = (): void => stopping.abort(new NotPurgedError('interrupted: the same command goes on'));
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
    const work = new Purge({ database, logger, resources, artifacts, cold, broker: whenConnected, deleted, step });
    const total = await work.purgeTenant(tenantId, now, stopping.signal);
    write(`the data of the tenant ${tenantId} is purged: ${total} rows`);
    return 0;
  } catch (error) {
    if (!(error instanceof NotPurgedError)) throw error;
    write(error.message);
    return 1;
  } finally {
    clearInterval(progress);
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.off(signal, stop);
    artifacts.close();
    cold.store?.close();
    await broker.close();
    await kubernetes.close();
  }
}

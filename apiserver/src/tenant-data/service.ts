// Purges deleted tenants in the background.
import { s3SettingsOf } from '../config/config.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { Loop } from '../platform/background/loop.ts';
import { counter } from '../platform/observability/metrics.ts';
import type { ColdStorage } from '../telemetry/cold/cold-storage.ts';
import { Purge } from './purge.ts';
import { type PurgeKubernetes, ResourcePurge } from './resource-purge.ts';

/** Milliseconds between checks for tenants that are due. */
const lookMilliseconds = 10_000;

/** Creates the loop that purges tenants when their period of grace is over. */
export function createTenantPurge(platform: Platform, kubernetes: PurgeKubernetes, cold: ColdStorage): ServiceModule {
  const { config, database, broker, metrics, audit } = platform;
  const logger = platform.logger.child({ service: 'tenant-data' });
  const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
  const rows = counter(metrics, 'kellet_purged_rows_total', 'Rows of deleted tenants that were purged.');
  const resources = new ResourcePurge(kubernetes, logger);
  const deleted = (_table: string, count: number): void => rows.inc(count);
  const purge = new Purge({ database, logger, audit, resources, artifacts, cold, broker, deleted });
  const loop = new Loop(logger, 'purge of deleted tenants', lookMilliseconds, (signal) => purge.purgeDue(signal));
  return {
    register: () => undefined,
    start: async () => loop.start(),
    stop: async () => {
      await loop.stop();
      artifacts.close();
    },
  };
}

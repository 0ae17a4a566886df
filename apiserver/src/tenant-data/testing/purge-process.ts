// For tests: the purge of one tenant as a process of its own, which is killed. Prints `deleted` after each transaction.
import { writeSync } from 'node:fs';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { s3SettingsOf } from '../../config/config.ts';
import { ArtifactStores } from '../../device-link/ota/artifacts/artifact-stores.ts';
import { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { openColdStorage } from '../../telemetry/cold/cold-storage.ts';
import { Purge } from '../purge.ts';
import { ResourcePurge } from '../resource-purge.ts';
import { emptyCluster } from './empty-cluster.ts';

const [databaseUrl = '', tenantId = '', settings = '{}'] = process.argv.slice(2);
const logger = createLogger('fatal');
const database = new Database(databaseUrl, logger);
const platform = testPlatform(database, new MovableClock(), JSON.parse(settings) as Record<string, string>);
const artifacts = new ArtifactStores(platform.config.artifactStore, s3SettingsOf(platform.config));
const purge = new Purge({
  ...{ database, logger, audit: platform.audit, artifacts, cold: openColdStorage(platform), settleMilliseconds: 0 },
  resources: new ResourcePurge(emptyCluster, logger),
  broker: { purgeTenant: async () => undefined },
  deleted: () => void writeSync(1, 'deleted\n'),
});
await purge.purgeTenant(tenantId, true, new AbortController().signal);
process.exit(0);

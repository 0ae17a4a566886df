// Cold files without a store, for tests in which nothing turns cold.
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { ColdFiles } from '../cold/cold-files.ts';

/** Returns cold files whose reads fail. */
export const withoutStore = (): ColdFiles =>
  new ColdFiles(undefined, { logger: createLogger('fatal'), metrics: createMetrics() });

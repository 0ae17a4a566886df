// Removes from stores outside of the database what removed artifacts have left there.
import type { Database } from '../../../platform/database/database.ts';
import type { Logger } from '../../../platform/observability/logger.ts';
import type { ArtifactStores } from './artifact-stores.ts';
import { forgetRemains, listRemains } from './artifact-sweep-store.ts';

const remainsPerPage = 100;

/**
 * Removes what is due, until the signal aborts. A store that fails is left for the next time. Several processes may do so at
 * once: removing twice does no harm.
 */
export async function removeRemains(
  database: Database,
  stores: ArtifactStores,
  logger: Logger,
  signal: AbortSignal,
): Promise<void> {
  const failed = new Set<string>();
  for (;;) {
    const page = await database.system((tx) => listRemains(tx, [...failed], remainsPerPage));
    if (page.length === 0) return;
    for (const remains of page) {
      if (signal.aborted) return;
      if (failed.has(remains.store)) continue;
      try {
        await stores.at(remains.store).remove(remains.prefix);
        await database.system((tx) => forgetRemains(tx, remains));
      } catch (error) {
        failed.add(remains.store);
        logger.warn({ err: error, store: remains.store }, 'removed artifacts cannot be deleted from their store yet');
      }
    }
  }
}

// Tells the operator which profiles have gained or lost devices, at most once a second for each, whichever process changed
// the devices.
import { notifyChanged } from '../../control/changes.ts';
import { takeResizedProfiles } from '../../device-registry/devices/devices.ts';
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { profileResources } from './profile-store.ts';

const pauseMilliseconds = 1000;
const maximumProfiles = 500;

/** Announces a batch of profiles whose number of devices has changed. Returns how many there were. */
export function announceResizedProfiles(database: Database): Promise<number> {
  return database.system(async (tx) => {
    const resized = await takeResizedProfiles(tx, maximumProfiles);
    for (const { tenant_id: tenantId, namespace, resource_name: name } of await profileResources(tx, resized)) {
      await notifyChanged(tx, 'DeviceProfile', tenantId, namespace, name);
    }
    return resized.length;
  });
}

/** Announces until it is stopped. */
export class ProfileSizes {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly stopping = new AbortController();
  private running: Promise<void> | undefined;

  constructor(database: Database, logger: Logger) {
    this.database = database;
    this.logger = logger;
  }

  start(): void {
    this.running = this.run();
  }

  async stop(): Promise<void> {
    this.stopping.abort();
    await this.running;
  }

  private async run(): Promise<void> {
    const { signal } = this.stopping;
    while (!signal.aborted) {
      await sleep(pauseMilliseconds, signal);
      if (signal.aborted) return;
      await announceResizedProfiles(this.database).catch((error: unknown) =>
        this.logger.debug({ err: error }, 'failed to announce resized profiles, will retry'),
      );
    }
  }
}

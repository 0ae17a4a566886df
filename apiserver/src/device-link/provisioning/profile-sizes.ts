// Tells the operator which profiles have gained or lost devices, at most once a second for each, whichever process changed
// the devices.
import { notifyChanged } from '../../control/changes.ts';
import { takeResizedProfiles } from '../../device-registry/devices/devices.ts';
import { Loop } from '../../platform/background/loop.ts';
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

/** Returns a loop that announces until it is stopped. */
export const profileSizes = (database: Database, logger: Logger): Loop =>
  new Loop(logger, 'announcing of resized profiles', pauseMilliseconds, () => announceResizedProfiles(database));

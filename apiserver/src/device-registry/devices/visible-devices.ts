// Tells which devices limited callers reach, for the gateway and the live feed.
import type { Database } from '../../platform/database/database.ts';
import type { VisibleDevices } from '../../platform/visibility.ts';
import type { DeviceFacts } from './directory.ts';
import { devicesInGroups } from './group-members.ts';

/** The facts of devices, by the id as requested. */
interface Directory {
  lookup(
    tenantId: string,
    deviceIds: readonly string[],
  ): Promise<ReadonlyMap<string, Pick<DeviceFacts, 'deviceId' | 'customerId'>>>;
}

/**
 * Customers come from the directory, which is cached. Device groups are read each time: few callers are limited to some,
 * and a device that leaves a group is hidden at once.
 */
export function visibleDevices(database: Database, directory: Directory): VisibleDevices {
  return async (tenantId, deviceIds, { customerId, deviceGroupIds }) => {
    const known = await directory.lookup(tenantId, deviceIds);
    const visible = [...known].filter(([, facts]) => customerId === null || facts.customerId === customerId);
    if (deviceGroupIds === null) return new Set(visible.map(([id]) => id));
    const ids = visible.map(([, { deviceId }]) => deviceId);
    const inGroups = await database.read(tenantId, (tx) => devicesInGroups(tx, tenantId, ids, deviceGroupIds));
    return new Set(visible.filter(([, { deviceId }]) => inGroups.has(deviceId)).map(([id]) => id));
  };
}

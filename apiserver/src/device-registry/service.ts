// The device registry: devices, their groups, inherited settings and liveness.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { DeviceCredentials } from '../auth/device-credentials/device-credentials.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { Peers } from '../internal/peers.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';
import { alarmHandlers } from './alarms/alarm-handlers.ts';
import { alarmSweep } from './alarms/alarm-sweep.ts';
import { credentialHandlers } from './devices/credential-handlers.ts';
import { countsLoop } from './devices/device-counts.ts';
import { deviceHandlers } from './devices/device-handlers.ts';
import { findDevice } from './devices/devices.ts';
import { DeviceDirectory } from './devices/directory.ts';
import type { MembershipListener } from './devices/fleet-changes.ts';
import { assetHandlers } from './entities/asset-handlers.ts';
import { customerHandlers } from './entities/customer-handlers.ts';
import type { EntityParts, HoldDevice } from './entities/entity-parts.ts';
import { viewHandlers } from './entities/view-handlers.ts';
import { bulkHandler } from './fleet/bulk-handler.ts';
import { statisticsHandler } from './fleet/statistics-handler.ts';
import { groupHandlers, type GroupUsage } from './groups/group-handlers.ts';
import { QueryGroups } from './groups/query-groups.ts';
import { historySweep } from './history/history-sweep.ts';
import { exportHandler } from './import-export/export-handler.ts';
import { importHandler } from './import-export/import-handler.ts';
import { Liveness } from './liveness/liveness.ts';

/** What only other services know about the use of groups and customers. */
export interface Usage {
  readonly ofGroup: GroupUsage;
  readonly customerHasUsers: EntityParts['customerHasUsers'];
}

/** The device registry as used by the rest of the process. */
export interface DeviceRegistryModule extends ServiceModule {
  /** Cached facts of devices, for ingest and rollouts. */
  readonly directory: DeviceDirectory;
  /** Receives signs of life. */
  readonly liveness: Liveness;
}

/**
 * Creates the registry on top of the profiles, which provisioning owns. `membership` is notified of every changed
 * device; `usage` reports which groups and customers may not be deleted; `peers` hold signs of life that are not written yet.
 */
export function createDeviceRegistry(
  platform: Pick<Platform, 'config' | 'database' | 'paging' | 'clock' | 'logger'>,
  profiles: TransactionalProfileReader,
  membership: MembershipListener,
  usage: Usage,
  peers?: Peers,
): DeviceRegistryModule {
  const { config, database, paging, clock, logger } = platform;
  const directory = new DeviceDirectory(database, profiles, config.deviceCacheBytes);
  const liveness = new Liveness(database, directory, clock, logger, () => void peers?.refresh());
  const queryGroups = new QueryGroups(database, profiles, logger);
  const parts = {
    credentials: new DeviceCredentials(config, clock),
    queryGroups,
    database,
    paging,
    clock,
    profiles,
    liveness,
    membership,
    groupUsage: usage.ofGroup,
    peers,
  };
  const holdDevice: HoldDevice = async (tx, tenantId, deviceId) =>
    (await findDevice(tx, tenantId, deviceId, 'FOR SHARE')) !== undefined;
  const entities: EntityParts = { database, paging, customerHasUsers: usage.customerHasUsers, holdDevice };
  const loops = [
    queryGroups,
    historySweep(database, logger, config.deviceHistoryDays),
    countsLoop(database, logger),
    alarmSweep(database, logger),
  ];
  return {
    directory,
    liveness,
    register: (registry) =>
      registry.register(DeviceRegistryService, {
        ...deviceHandlers(parts),
        ...credentialHandlers(parts),
        ...importHandler(parts),
        ...bulkHandler(parts),
        ...statisticsHandler(parts),
        ...exportHandler(parts),
        ...groupHandlers(parts),
        ...customerHandlers(entities),
        ...assetHandlers(entities),
        ...viewHandlers(entities),
        ...alarmHandlers({ database, paging, clock, holdDevice }),
      }),
    start: async () => {
      liveness.start();
      for (const loop of loops) loop.start();
    },
    stop: async () => {
      await Promise.all([...loops.map((loop) => loop.stop()), liveness.stop()]);
    },
  };
}

// The device registry: devices, their groups, inherited settings and liveness.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Platform, ServiceModule } from '../config/module.ts';
import { alarmHandlers } from './alarm-handlers.ts';
import { deviceHandlers } from './device-handlers.ts';
import { DeviceDirectory } from './directory.ts';
import { groupHandlers } from './group-handlers.ts';
import { keepHistoryShort } from './history-sweep.ts';
import type { Peers } from '../internal/peers.ts';
import { Liveness } from './liveness.ts';
import type { MembershipListener } from './membership.ts';
import type { GroupUsage } from './registry-parts.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';

/** The device registry as used by the rest of the process. */
export interface DeviceRegistryModule extends ServiceModule {
  /** Cached facts of devices, for ingest and rollouts. */
  readonly directory: DeviceDirectory;
  /** Receives signs of life. */
  readonly liveness: Liveness;
}

/**
 * Creates the registry on top of the profiles, which provisioning owns. `membership` is notified of every changed
 * device; `groupUsage` tells which groups may not be deleted; `peers` are asked for the signs of life they hold.
 */
export function createDeviceRegistry(
  platform: Pick<Platform, 'config' | 'database' | 'paging' | 'clock' | 'logger'>,
  profiles: TransactionalProfileReader,
  membership: MembershipListener,
  groupUsage: GroupUsage,
  peers?: Peers,
): DeviceRegistryModule {
  const { config, database, paging, clock, logger } = platform;
  const directory = new DeviceDirectory(database, profiles);
  const liveness = new Liveness(database, directory, clock, logger, () => void peers?.refresh());
  const parts = { database, paging, profiles, liveness, membership, groupUsage, peers };
  const stopping = new AbortController();
  let sweeping: Promise<void> | undefined;
  return {
    directory,
    liveness,
    register: (registry) =>
      registry.register(DeviceRegistryService, {
        ...deviceHandlers(parts),
        ...groupHandlers(parts),
        ...alarmHandlers({ database, paging, clock }),
      }),
    start: async () => {
      liveness.start();
      sweeping = keepHistoryShort(database, logger, config.deviceHistoryDays, stopping.signal);
    },
    stop: async () => {
      stopping.abort();
      await Promise.all([sweeping, liveness.stop()]);
    },
  };
}

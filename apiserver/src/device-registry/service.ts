// The device registry: devices, their groups, what they inherit, and whether they are online.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Platform, ServiceModule } from '../config/module.ts';
import { deviceHandlers } from './device-handlers.ts';
import { DeviceDirectory } from './directory.ts';
import { groupHandlers } from './group-handlers.ts';
import { Liveness } from './liveness.ts';
import type { MembershipListener } from './membership.ts';
import type { ProfileReader } from '../policies/profile-reader.ts';

/** The device registry as the rest of the process sees it. */
export interface DeviceRegistryModule extends ServiceModule {
  /** Facts of devices in memory, for ingest and rollouts. */
  readonly directory: DeviceDirectory;
  /** Where signs of life are reported. */
  readonly liveness: Liveness;
}

/** Builds the registry on top of the profiles, which provisioning owns; `membership` is told of every changed device. */
export function createDeviceRegistry(
  platform: Pick<Platform, 'database' | 'paging' | 'clock' | 'logger'>,
  profiles: ProfileReader,
  membership: MembershipListener,
): DeviceRegistryModule {
  const { database, paging, clock, logger } = platform;
  const directory = new DeviceDirectory(database, profiles);
  const liveness = new Liveness(database, directory, clock, logger);
  const parts = { database, paging, profiles, liveness, membership };
  return {
    directory,
    liveness,
    register: (registry) =>
      registry.register(DeviceRegistryService, { ...deviceHandlers(parts), ...groupHandlers(parts) }),
    start: async () => liveness.start(),
    stop: () => liveness.stop(),
  };
}

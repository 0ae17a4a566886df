// Creates the provisioning service: profiles, templates and claims.
import { sealProvisionKey } from '@kellet/crds';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { DeviceCredentials } from '../../auth/device-credentials/device-credentials.ts';
import type { Platform, ServiceModule } from '../../config/module.ts';
import type { ControlModule } from '../../control/service.ts';
import type { MembershipListener } from '../../device-registry/devices/fleet-changes.ts';
import type { ProfileReader } from '../../policies/profile-reader.ts';
import type { ResourceWriter } from '../../resources/resource-writer.ts';
import { claimMethod } from './claims.ts';
import { ProfileApplier, type ProfileUsage } from './profile-applier.ts';
import { profileSizes } from './profile-sizes.ts';
import { createProfileReader, profileService } from './profiles.ts';
import { TemplateApplier } from './template-applier.ts';
import { templateMethods } from './templates.ts';

/** Provisioning as used by main.ts. */
export interface ProvisioningModule extends ServiceModule {
  readonly profiles: ProfileReader;
}

/**
 * Creates the provisioning service and adds its appliers to control. `usage` counts uses of a profile elsewhere:
 * devices and rollouts that are not completed. `membership` is notified of claimed devices and changed profiles.
 */
export function createProvisioning(
  platform: Platform,
  control: ControlModule,
  writer: ResourceWriter,
  usage: ProfileUsage,
  membership: MembershipListener,
): ProvisioningModule {
  const { config, database, paging, outbox, clock, metrics } = platform;
  const logger = platform.logger.child({ service: 'provisioning' });
  const { changes } = control;
  const profileApplier = new ProfileApplier(database, usage, membership);
  const templateApplier = new TemplateApplier(database);
  control.addApplier('DeviceProfile', profileApplier);
  control.addApplier('ProvisioningTemplate', templateApplier);
  const sizes = profileSizes(database, logger);
  return {
    profiles: createProfileReader(database),
    start: async () => sizes.start(),
    stop: () => sizes.stop(),
    register(registry) {
      registry.register(ProfileService, profileService({ database, paging, writer, applier: profileApplier, usage }));
      registry.register(ProvisioningService, {
        ...templateMethods({
          ...{ database, paging, writer, applier: templateApplier },
          sealKey: (namespace, name, key) => sealProvisionKey(config.controlSecret, namespace, name, key),
        }),
        ...claimMethod({
          ...{ database, outbox, clock, logger, metrics, changes, membership, audit: platform.audit },
          credentials: new DeviceCredentials(config, clock),
        }),
      });
    },
  };
}

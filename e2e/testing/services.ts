// The services that create resources, run in the test's process with a real database and API server. The test chooses
// how each is connected.
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { MovableClock, testPlatform } from '../../apiserver/src/auth/testing/test-platform.ts';
import { Dispatcher } from '../../apiserver/src/control/dispatcher.ts';
import { RolloutMembership } from '../../apiserver/src/device-link/ota/rollouts/membership.ts';
import { createOta } from '../../apiserver/src/device-link/ota/service.ts';
import { ProfileApplier } from '../../apiserver/src/device-link/provisioning/profile-applier.ts';
import { createProfileReader, profileService } from '../../apiserver/src/device-link/provisioning/profiles.ts';
import { TemplateApplier } from '../../apiserver/src/device-link/provisioning/template-applier.ts';
import { templateMethods } from '../../apiserver/src/device-link/provisioning/templates.ts';
import { registryUsage } from '../../apiserver/src/device-link/provisioning/testing/test-fixtures.ts';
import { systemClock } from '../../apiserver/src/platform/clock.ts';
import type { Database } from '../../apiserver/src/platform/database/database.ts';
import type { KubernetesApi } from '../../apiserver/src/platform/kubernetes/kubernetes.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { Paging } from '../../apiserver/src/platform/requests/paging.ts';
import { ServiceRegistry } from '../../apiserver/src/platform/rpc.ts';
import { ResourceWriter } from '../../apiserver/src/resources/resource-writer.ts';
import { TenantApplier } from '../../apiserver/src/tenants/tenant-applier.ts';
import { TenantResources } from '../../apiserver/src/tenants/tenant-resources.ts';
import { usageReader } from '../../apiserver/src/tenants/tenant-usage.ts';
import { tenantHandlers } from '../../apiserver/src/tenants/tenants.ts';

/** Creates the services as a single process of the data plane does. */
export function assembleServices(options: {
  database: Database;
  kubernetes: KubernetesApi;
  deadlineMilliseconds?: number;
  settleMilliseconds?: number;
}): { registry: ServiceRegistry; dispatcher: Dispatcher; writer: ResourceWriter } {
  const { database } = options;
  const parts = { ...options, logger: createLogger('silent') };
  const dispatcher = new Dispatcher(database);
  const writer = new ResourceWriter({ ...parts, dispatcher });
  const paging = new Paging(Buffer.alloc(32));
  const membership = new RolloutMembership(systemClock);
  const profiles = new ProfileApplier(database, registryUsage, membership);
  const templates = new TemplateApplier(database);
  const platform = { ...testPlatform(database, new MovableClock()), clock: systemClock, paging };
  const tenants = new TenantApplier(platform);
  const ota = createOta(platform, createProfileReader(database), writer, membership);
  dispatcher.addApplier('Tenant', tenants);
  dispatcher.addApplier('DeviceProfile', profiles);
  dispatcher.addApplier('ProvisioningTemplate', templates);
  dispatcher.addApplier('OtaPackage', ota.packages);
  dispatcher.addApplier('OtaRollout', ota.rolloutApplier);
  const registry = new ServiceRegistry();
  const usage = registryUsage;
  registry.register(ProfileService, profileService({ database, paging, writer, applier: profiles, usage }));
  registry.register(
    ProvisioningService,
    templateMethods({ database, paging, writer, applier: templates, sealKey: () => '' }),
  );
  ota.register(registry);
  const tenantResources = new TenantResources({ ...parts, applier: tenants });
  const usageOf = usageReader(platform, async () => ({}));
  registry.register(AuthService, tenantHandlers(platform, tenantResources, usageOf));
  return { registry, dispatcher, writer };
}

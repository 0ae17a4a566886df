// Creates the services of a process. Only the gateway calls services of other processes; facts of devices and profiles
// are read from the database wherever they are needed. Processes that take points also ask each other what is not there
// yet (internal/peers.ts).
import { loadKubeConfig } from '@kellet/kubernetes';
import { createAudit } from './audit/service.ts';
import { customerHasUsers } from './auth/accounts/account-store.ts';
import { createAuth } from './auth/service.ts';
import { userGroupsOf } from './auth/users/group-store.ts';
import { countSubmittedToday } from './chain-anchor/batches.ts';
import { createChainAnchor } from './chain-anchor/service.ts';
import type { Platform, ServiceModule } from './config/module.ts';
import type { Target } from './config/targets.ts';
import { createControl } from './control/service.ts';
import { createAttributes } from './device-link/attributes/service.ts';
import { createGateways } from './device-link/gateways/service.ts';
import { RolloutMembership } from './device-link/ota/rollouts/membership.ts';
import { countRolloutsOfProfile } from './device-link/ota/rollouts/stores/rollout-store.ts';
import { createOta } from './device-link/ota/service.ts';
import { createProfileReader } from './device-link/provisioning/profiles.ts';
import { createProvisioning } from './device-link/provisioning/service.ts';
import { templatesOfGroup } from './device-link/provisioning/template-store.ts';
import { createRpc } from './device-link/rpc/service.ts';
import { createStreams } from './device-link/streams/service.ts';
import { countDevices } from './device-registry/devices/device-counts.ts';
import { countDevicesOfProfile, leaveGateways } from './device-registry/devices/devices.ts';
import type { DeviceDirectory } from './device-registry/devices/directory.ts';
import { unknownGroups } from './device-registry/devices/group-members.ts';
import { visibleDevices } from './device-registry/devices/visible-devices.ts';
import { entityViewsOf } from './device-registry/entities/views.ts';
import type { GroupUsage } from './device-registry/groups/group-handlers.ts';
import { createDeviceRegistry } from './device-registry/service.ts';
import { controlTlsOf } from './internal/control-tls.ts';
import { ownAddress, Peers } from './internal/peers.ts';
import type { InternalServer } from './internal/server.ts';
import { KubernetesApi } from './platform/kubernetes/kubernetes.ts';
import { ServiceRegistry } from './platform/rpc.ts';
import { createResources } from './resources/service.ts';
import { countRulesOfProfile, ruleOfGroup } from './rules-engine/rules/rule-store.ts';
import { createRulesEngine } from './rules-engine/service.ts';
import { openColdStorage } from './telemetry/cold/cold-storage.ts';
import type { LiveHub } from './telemetry/live/live.ts';
import { writerAddresses } from './telemetry/read/hot-tails.ts';
import { readTenantUsage } from './telemetry/read/usage.ts';
import { createTelemetry } from './telemetry/service.ts';
import { createDeletedDevices } from './tenant-data/deleted-devices.ts';
import { createTenantPurge } from './tenant-data/service.ts';
import { createTenants } from './tenants/service.ts';
import { TenantApplier } from './tenants/tenant-applier.ts';
import type { MeasureUsage } from './tenants/tenant-usage.ts';
import { createVerifier } from './verifier/service.ts';
import { createWebhooks } from './webhooks/service.ts';

/** The services for the targets of a process. */
export interface ProcessServices {
  /** In start order. */
  readonly modules: readonly ServiceModule[];
  /** Their handlers. */
  readonly registry: ServiceRegistry;
  readonly directory: DeviceDirectory;
}

const measureUsage: MeasureUsage = async (tx, tenantId) => {
  const [devices, { pointsToday, pointsRefusedToday, storedBytes }, anchorsToday] = await Promise.all([
    countDevices(tx, tenantId),
    readTenantUsage(tx, tenantId),
    countSubmittedToday(tx, tenantId),
  ]);
  return { devices, pointsToday, pointsRefusedToday, storageBytes: storedBytes, anchorsToday };
};

/** Creates the services of the targets. Control adds itself to the internal server. */
export function createServices(
  platform: Platform,
  targets: ReadonlySet<Target>,
  internal: InternalServer,
  live: LiveHub,
): ProcessServices {
  const { database, logger } = platform;
  const registry = new ServiceRegistry();
  const modules: ServiceModule[] = [];
  const serve = <M extends ServiceModule>(module: M): M => {
    module.register(registry);
    modules.push(module);
    return module;
  };

  // Separate connections, so that token reviews never delay writes of resources.
  const openKubernetes = (): KubernetesApi => new KubernetesApi(loadKubeConfig(process.env['KUBECONFIG']), logger);
  let tenantKubernetes: KubernetesApi | undefined;
  if (targets.has('auth')) {
    const kubernetes = openKubernetes();
    serve(createAuth(platform, kubernetes, unknownGroups, leaveGateways));
    serve(createAudit(platform));
    serve(createTenants(platform, kubernetes, measureUsage));
    tenantKubernetes = kubernetes;
  }

  const profiles = createProfileReader(database);
  // A change to a device changes its rollouts in the same transaction, in whichever process it happens.
  const membership = new RolloutMembership(platform.clock);
  const { listenHost, controlPort, controlSecret } = platform.config;
  const access = { secret: controlSecret, tls: controlTlsOf(platform.config) };
  const peers = new Peers(platform, ownAddress(listenHost, controlPort), access, () => writerAddresses(database));
  if (targets.has('device-registry') || targets.has('telemetry'))
    serve({ register: () => undefined, start: () => peers.start(), stop: () => peers.stop() });
  const cold = openColdStorage(platform);
  modules.push({ register: () => undefined, stop: () => Promise.resolve(cold.store?.close()) });
  if (tenantKubernetes) modules.push(createTenantPurge(platform, tenantKubernetes, cold));
  const ofGroup: GroupUsage = async (...group) =>
    (await templatesOfGroup(...group)) ?? (await ruleOfGroup(...group)) ?? userGroupsOf(...group);
  const usage = { ofGroup, customerHasUsers };
  const deviceRegistry = createDeviceRegistry(platform, profiles, membership, usage, peers);
  if (targets.has('device-registry')) modules.push(createDeletedDevices(platform));
  const { directory, liveness } = deviceRegistry;
  if (targets.has('device-registry')) serve(deviceRegistry);
  // Targets that receive device traffic also record liveness.
  else if (targets.has('telemetry') || targets.has('device-link')) modules.push(deviceRegistry);

  if (targets.has('device-link')) {
    const control = createControl(platform, internal);
    const resources = createResources(platform, openKubernetes(), control.dispatcher);
    serve(
      createProvisioning(
        platform,
        control,
        resources.writer,
        async (tx, tenantId, profileId) => ({
          devices: await countDevicesOfProfile(tx, tenantId, profileId),
          rollouts: await countRolloutsOfProfile(tx, tenantId, profileId),
          rules: await countRulesOfProfile(tx, tenantId, profileId),
        }),
        membership,
      ),
    );
    const ota = serve(createOta(platform, profiles, resources.writer, membership));
    control.addApplier('Tenant', new TenantApplier(platform));
    control.addApplier('OtaPackage', ota.packages);
    control.addApplier('OtaRollout', ota.rolloutApplier);
    control.setRolloutDriver(ota.rolloutDriver);
    const { feed, delivery } = serve(createRpc(platform, profiles, liveness));
    serve(createStreams({ platform, feed, delivery, liveness }));
    serve(createAttributes(platform));
    serve(createGateways({ platform, profiles, membership, directory, liveness }));
    serve(resources);
    serve(control);
  }
  if (targets.has('telemetry'))
    serve(
      createTelemetry(platform, directory, liveness, {
        ...{ live, peers, cold, findView: entityViewsOf(database) },
        visibleDevices: visibleDevices(database, directory),
      }),
    );
  if (targets.has('rules-engine')) {
    serve(createRulesEngine(platform, profiles, directory));
    serve(createWebhooks(platform));
  }
  if (targets.has('chain-anchor')) serve(createChainAnchor(platform));
  if (targets.has('verifier')) serve(createVerifier(platform, cold.files));
  return { modules, registry, directory };
}

// For tests: manifests of profiles and templates, applied as the operator would.
import { create, type JsonObject } from '@bufbuild/protobuf';
import { type DeviceProfileSpec, type ProvisioningTemplateSpec, provisionKeyBinding } from '@kellet/crds';
import { ApplyRequestSchema, type ApplyResponse, Kind } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { Dispatcher } from '../../../control/dispatcher.ts';
import { countDevicesOfProfile } from '../../../device-registry/devices/devices.ts';
import { systemClock } from '../../../platform/clock.ts';
import type { Database } from '../../../platform/database/database.ts';
import { RolloutMembership } from '../../ota/rollouts/membership.ts';
import { ProfileApplier, type ProfileUsage } from '../profile-applier.ts';
import { provisionKeyHash } from '../provision-key.ts';
import { TemplateApplier } from '../template-applier.ts';

/** Devices as counted by the registry; no rollouts. */
export const registryUsage: ProfileUsage = async (tx, tenantId, profileId) => ({
  devices: await countDevicesOfProfile(tx, tenantId, profileId),
  rollouts: 0,
  rules: 0,
});

/** A dispatcher with the appliers of provisioning. */
export function provisioningDispatcher(database: Database, usage: ProfileUsage = registryUsage): Dispatcher {
  const dispatcher = new Dispatcher(database);
  dispatcher.addApplier('DeviceProfile', new ProfileApplier(database, usage, new RolloutMembership(systemClock)));
  dispatcher.addApplier('ProvisioningTemplate', new TemplateApplier(database));
  return dispatcher;
}

/** Identity of a manifest in a test; omitted fields have default values. */
export interface ManifestIdentity {
  readonly tenantId: string;
  readonly name: string;
  readonly namespace?: string;
  readonly uid?: string;
  readonly generation?: bigint;
  readonly resourceVersion?: string;
  readonly displayName?: string;
  readonly intentId?: string;
}

const metaOf = (identity: ManifestIdentity) => ({ namespace: `kellet-${identity.tenantId}`, uid: 'uid', ...identity });

/** Applies a DeviceProfile. */
export const applyProfile = (
  dispatcher: Dispatcher,
  identity: ManifestIdentity,
  spec: DeviceProfileSpec = {},
): Promise<ApplyResponse> =>
  dispatcher.apply(
    create(ApplyRequestSchema, { meta: metaOf(identity), kind: Kind.DEVICE_PROFILE, spec: spec as JsonObject }),
  );

/** Applies a ProvisioningTemplate whose key is `key`, bound to the tenant. */
export const applyTemplate = (
  dispatcher: Dispatcher,
  identity: ManifestIdentity,
  key: string,
  spec: Partial<ProvisioningTemplateSpec> = {},
): Promise<ApplyResponse> => {
  const whole = {
    profileRef: { name: 'pumps' },
    hardwareIdPattern: '*',
    keySha256: provisionKeyHash(key).toString('hex'),
    keyBinding: provisionKeyBinding(identity.tenantId, key),
    ...spec,
  };
  return dispatcher.apply(
    create(ApplyRequestSchema, { meta: metaOf(identity), kind: Kind.PROVISIONING_TEMPLATE, spec: whole }),
  );
};

// For tests: manifests of profiles and templates, applied as the operator would.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { provisionKeyBinding } from '@kellet/crds';
import {
  ApplyRequestSchema,
  type ApplyResponse,
  type DeviceProfileSpecSchema,
  type ProvisioningTemplateSpecSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { Dispatcher } from '../../../control/dispatcher.ts';
import { countDevicesOfProfile } from '../../../device-registry/devices.ts';
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
});

/** A dispatcher with the appliers of provisioning. */
export function provisioningDispatcher(database: Database, usage: ProfileUsage = registryUsage): Dispatcher {
  const dispatcher = new Dispatcher(database);
  dispatcher.addApplier('deviceProfile', new ProfileApplier(database, usage, new RolloutMembership(systemClock)));
  dispatcher.addApplier('provisioningTemplate', new TemplateApplier(database));
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
  spec: MessageInitShape<typeof DeviceProfileSpecSchema> = {},
): Promise<ApplyResponse> =>
  dispatcher.apply(
    create(ApplyRequestSchema, { meta: metaOf(identity), spec: { case: 'deviceProfile', value: spec } }),
  );

/** Applies a ProvisioningTemplate whose key is `key`, bound to the tenant. */
export const applyTemplate = (
  dispatcher: Dispatcher,
  identity: ManifestIdentity,
  key: string,
  spec: MessageInitShape<typeof ProvisioningTemplateSpecSchema> = {},
): Promise<ApplyResponse> => {
  const value = {
    profileName: 'pumps',
    hardwareIdPattern: '*',
    keySha256: provisionKeyHash(key).toString('hex'),
    keyBinding: provisionKeyBinding(identity.tenantId, key),
    ...spec,
  };
  return dispatcher.apply(
    create(ApplyRequestSchema, { meta: metaOf(identity), spec: { case: 'provisioningTemplate', value } }),
  );
};

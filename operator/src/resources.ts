// The kinds of objects that the operator reads and writes.
import {
  type DeviceProfile,
  type Kind,
  type ObjectMeta,
  type OtaPackage,
  type OtaRollout,
  type ProvisioningTemplate,
  type Tenant,
} from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import { Kind as ControlKind } from '@kellet/proto/ts/kellet/control/v1/control';

/** Object type of each kind. */
export interface ObjectOf {
  DeviceProfile: DeviceProfile;
  ProvisioningTemplate: ProvisioningTemplate;
  OtaPackage: OtaPackage;
  OtaRollout: OtaRollout;
  Tenant: Tenant;
}

/** Any custom resource. */
export type CustomResource = ObjectOf[Kind];

/** Kinds in a tenant's namespace. */
export type NamespacedKind = Exclude<Kind, 'Tenant'>;

/** Enum value of each kind in the control protocol. */
export const controlKinds: { readonly [K in Kind]: ControlKind } = {
  Tenant: ControlKind.KIND_TENANT,
  DeviceProfile: ControlKind.KIND_DEVICE_PROFILE,
  ProvisioningTemplate: ControlKind.KIND_PROVISIONING_TEMPLATE,
  OtaPackage: ControlKind.KIND_OTA_PACKAGE,
  OtaRollout: ControlKind.KIND_OTA_ROLLOUT,
};

/** Returns the kind for an enum value of the control protocol, or undefined. */
export function kindOf(controlKind: ControlKind): Kind | undefined {
  return (Object.keys(controlKinds) as Kind[]).find((kind) => controlKinds[kind] === controlKind);
}

/** A namespace. */
export interface Namespace extends KubernetesObject {
  status?: { phase?: string };
}

/** A Secret. Values are base64-encoded. */
export interface Secret extends KubernetesObject {
  type?: string;
  data?: Record<string, string>;
}

/** Reports whether the object is being deleted. */
export function isBeingDeleted(object: { metadata: ObjectMeta }): boolean {
  return object.metadata.deletionTimestamp !== undefined;
}

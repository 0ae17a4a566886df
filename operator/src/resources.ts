// The kinds of object that the operator reads and writes.
import {
  group,
  plurals,
  version,
  type DeviceProfile,
  type Kind,
  type ObjectMeta,
  type OtaPackage,
  type OtaRollout,
  type ProvisioningTemplate,
  type Tenant,
} from '@kellet/crds';
import { Kind as ControlKind } from '@kellet/proto/ts/kellet/control/v1/control';
import type { KubernetesObject, Resource } from './runtime/resource.ts';

/** The type of each kind's objects. */
export interface ObjectOf {
  DeviceProfile: DeviceProfile;
  ProvisioningTemplate: ProvisioningTemplate;
  OtaPackage: OtaPackage;
  OtaRollout: OtaRollout;
  Tenant: Tenant;
}

/** Any of the custom resources. */
export type CustomResource = ObjectOf[Kind];

/** The kinds that live in a tenant's namespace. */
export type NamespacedKind = Exclude<Kind, 'Tenant'>;

/** Where each kind lies. */
export const customResources: { readonly [K in Kind]: Resource } = Object.fromEntries(
  Object.entries(plurals).map(([kind, plural]) => [
    kind,
    { group, version, plural, kind, namespaced: kind !== 'Tenant' },
  ]),
) as { [K in Kind]: Resource };

/** The number of each kind in the control protocol. */
export const controlKinds: { readonly [K in Kind]: ControlKind } = {
  Tenant: ControlKind.KIND_TENANT,
  DeviceProfile: ControlKind.KIND_DEVICE_PROFILE,
  ProvisioningTemplate: ControlKind.KIND_PROVISIONING_TEMPLATE,
  OtaPackage: ControlKind.KIND_OTA_PACKAGE,
  OtaRollout: ControlKind.KIND_OTA_ROLLOUT,
};

/** @returns the kind that a number of the control protocol stands for */
export function kindOf(controlKind: ControlKind): Kind | undefined {
  return (Object.keys(controlKinds) as Kind[]).find((kind) => controlKinds[kind] === controlKind);
}

/** Where namespaces lie. */
export const namespaceResource: Resource = {
  group: '',
  version: 'v1',
  plural: 'namespaces',
  kind: 'Namespace',
  namespaced: false,
};

/** Where Secrets lie. */
export const secretResource: Resource = {
  group: '',
  version: 'v1',
  plural: 'secrets',
  kind: 'Secret',
  namespaced: true,
};

/** A namespace. */
export interface Namespace extends KubernetesObject {
  status?: { phase?: string };
}

/** A Secret; values are base64. */
export interface Secret extends KubernetesObject {
  type?: string;
  data?: Record<string, string>;
}

/** Whether somebody has asked for the object's deletion. */
export function isBeingDeleted(object: { metadata: ObjectMeta }): boolean {
  return object.metadata.deletionTimestamp !== undefined;
}

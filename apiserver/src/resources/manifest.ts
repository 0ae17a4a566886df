// Converts custom resources to requests of the control service.
import { create, type JsonObject, type MessageInitShape } from '@bufbuild/protobuf';
import { displayNameAnnotation, intentAnnotation } from '@kellet/crds';
import {
  type ApplyRequest,
  ApplyRequestSchema,
  type ObjectMetaSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { kindNumbers } from '../control/kinds.ts';
import type { Specs } from '../control/manifest-mapping.ts';
import { namedId, rolloutId } from '../platform/ids.ts';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';

/** The spec types of the kinds that REST and gRPC callers create in a tenant's namespace. */
export type ManagedSpecs = Omit<Specs, 'Tenant'>;

/** A kind of resource that REST and gRPC callers create in a tenant's namespace. */
export type ManagedKind = keyof ManagedSpecs;

/** Returns the request that applies a custom resource. */
export const applyRequest = <K extends ManagedKind>(
  kind: K,
  tenantId: string,
  object: KubernetesObject<ManagedSpecs[K]>,
): ApplyRequest =>
  create(ApplyRequestSchema, {
    meta: metaOf(tenantId, object),
    kind: kindNumbers[kind],
    spec: object.spec as unknown as JsonObject,
  });

/** Returns the id of a resource in the data plane. */
export function workingCopyId<K extends ManagedKind>(
  kind: K,
  tenantId: string,
  { metadata: { name }, spec }: KubernetesObject<ManagedSpecs[K]>,
): string {
  if (kind === 'DeviceProfile') return namedId(tenantId, 'profile', name);
  if (kind === 'ProvisioningTemplate') return namedId(tenantId, 'template', name);
  if (kind === 'OtaPackage') return namedId(tenantId, 'package', name);
  const { packageRef, targetProfileRef } = spec as ManagedSpecs['OtaRollout'];
  const packageId = namedId(tenantId, 'package', packageRef.name);
  return rolloutId(tenantId, name, packageId, namedId(tenantId, 'profile', targetProfileRef.name));
}

/** Returns the identity of a custom resource in the control protocol. */
export function metaOf(tenantId: string, object: KubernetesObject<unknown>): MessageInitShape<typeof ObjectMetaSchema> {
  const { metadata } = object;
  return {
    tenantId,
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    uid: metadata.uid ?? '',
    generation: BigInt(metadata.generation ?? 0),
    resourceVersion: metadata.resourceVersion ?? '',
    displayName: metadata.annotations?.[displayNameAnnotation] ?? '',
    intentId: metadata.annotations?.[intentAnnotation] ?? '',
  };
}

// Decides which namespace belongs to which tenant; each tenant has one. The namespace needs the label
// kellet.dev/tenant, and the Tenant must agree: being able to label a namespace must not give access to a tenant's
// resources and Secrets.
import { createHmac, timingSafeEqual } from 'node:crypto';
import { type Tenant, tenantLabel, tenantNamespaceName } from '@kellet/crds';
import { isBeingDeleted, type Namespace } from './resources.ts';

/** Returns the name of a tenant's namespace, whether or not it exists. */
export function namespaceNameOf(tenant: Tenant): string {
  return tenant.spec.namespace ?? tenantNamespaceName(tenant.metadata.name);
}

/** Annotation of a namespace that the operator has created; see namespaceSeal. */
export const namespaceSealAnnotation = 'kellet.dev/namespace-seal';

/**
 * Returns the value of the annotation of a namespace created for a Tenant. Labels and owners can be set by anyone who may
 * write the namespace; the seal requires the operator's secret. It names the namespace that this one follows, because whoever may
 * read that one could copy its seal to another of its name.
 */
export function namespaceSeal(secret: string, tenant: Tenant): string {
  const { name, uid = '' } = tenant.metadata;
  const { namespace, namespaceUid = '' } = tenant.status ?? {};
  const before = namespace === undefined ? [] : [namespace, namespaceUid];
  return createHmac('sha256', secret)
    .update(['kellet-namespace', name, uid, namespaceNameOf(tenant), ...before].join('\n'))
    .digest('hex');
}

/** Reports whether a namespace is a tenant's: it has the label, and the Tenant names it or the operator created it. */
export function belongsTo(tenant: Tenant, { metadata }: Namespace, secret: string): boolean {
  if (metadata.labels?.[tenantLabel] !== tenant.metadata.name) return false;
  if (metadata.name === tenant.spec.namespace) return true;
  if (metadata.name !== namespaceNameOf(tenant) || tenant.metadata.uid === undefined) return false;
  const seal = Buffer.from(metadata.annotations?.[namespaceSealAnnotation] ?? '');
  const wanted = Buffer.from(namespaceSeal(secret, tenant));
  return seal.length === wanted.length && timingSafeEqual(seal, wanted);
}

/**
 * Chooses the namespace of a tenant among those with its label: the one recorded in its status, else the one with its
 * name if it belongs to the tenant. A recreated namespace with the recorded name is not the recorded one. One that is
 * being deleted is not newly chosen.
 */
export function chooseNamespace(tenant: Tenant, labelled: readonly Namespace[], secret: string): Namespace | undefined {
  const { namespace: recorded, namespaceUid } = tenant.status ?? {};
  const kept = labelled.find(
    // Earlier versions of the operator recorded only the name.
    ({ metadata }) => metadata.name === recorded && (namespaceUid === undefined || metadata.uid === namespaceUid),
  );
  if (kept) return kept;
  const name = namespaceNameOf(tenant);
  return labelled.find(
    (namespace) =>
      namespace.metadata.name === name && !isBeingDeleted(namespace) && belongsTo(tenant, namespace, secret),
  );
}

/** The tenant of a namespace, or why it has none. */
export type Tenancy = { tenantId: string } | { problem: string };

/** Input of the decision. */
export interface TenancyFacts {
  namespace: Namespace | undefined;
  /** Whether the Tenant named by the namespace's label exists. */
  tenantExists: boolean;
  /** The namespace chosen for that tenant. */
  chosen: Namespace | undefined;
}

/** Decides which tenant the resources of a namespace belong to. */
export function decideTenancy({ namespace, tenantExists, chosen }: TenancyFacts): Tenancy {
  if (!namespace) return { problem: 'the namespace has not been observed yet' };
  const { name, labels } = namespace.metadata;
  const tenantId = labels?.[tenantLabel];
  if (!tenantId) return { problem: `namespace ${name} does not have the label ${tenantLabel}` };
  if (!tenantExists)
    return { problem: `namespace ${name} is labelled for tenant ${tenantId}, but there is no such Tenant` };
  if (!chosen) {
    return {
      problem: `namespace ${name} is labelled for tenant ${tenantId}, but the Tenant does not name it in spec.namespace`,
    };
  }
  if (chosen.metadata.name !== name) {
    return {
      problem: `tenant ${tenantId} already has the namespace ${chosen.metadata.name}; a tenant can have only one`,
    };
  }
  return { tenantId };
}

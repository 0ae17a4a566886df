// Which namespace belongs to which tenant: one each. The label kellet.dev/tenant says so on the namespace's side, and the
// Tenant must agree: whoever may label a namespace does not thereby get a tenant's resources and Secrets.
import { tenantLabel, tenantNamespaceName, type Tenant } from '@kellet/crds';
import { isBeingDeleted, type Namespace } from './resources.ts';

/** Returns the name of the namespace that a tenant has, or is to have. */
export function namespaceNameOf(tenant: Tenant): string {
  return tenant.spec.namespace ?? tenantNamespaceName(tenant.metadata.name);
}

/** Whether a namespace is a tenant's to have: it carries the label, and the Tenant names it or it was made for the Tenant. */
export function belongsTo(tenant: Tenant, { metadata }: Namespace): boolean {
  if (metadata.labels?.[tenantLabel] !== tenant.metadata.name) return false;
  return (
    metadata.name === tenant.spec.namespace ||
    (tenant.metadata.uid !== undefined &&
      (metadata.ownerReferences ?? []).some(({ uid }) => uid === tenant.metadata.uid))
  );
}

/**
 * Chooses the namespace of a tenant among those that carry its label: the one recorded in its status, else the one that it is
 * to have, if that belongs to it. A namespace of the recorded name that was made anew is no longer the recorded one. One that
 * is on its way out is not chosen anew.
 */
export function chooseNamespace(tenant: Tenant, labelled: readonly Namespace[]): Namespace | undefined {
  const { namespace: recorded, namespaceUid } = tenant.status ?? {};
  const kept = labelled.find(
    // Operators before this one recorded the name alone.
    ({ metadata }) => metadata.name === recorded && (namespaceUid === undefined || metadata.uid === namespaceUid),
  );
  if (kept) return kept;
  const name = namespaceNameOf(tenant);
  return labelled.find(
    (namespace) => namespace.metadata.name === name && !isBeingDeleted(namespace) && belongsTo(tenant, namespace),
  );
}

/** The tenant of a namespace, or why it has none. */
export type Tenancy = { tenantId: string } | { problem: string };

/** What the decision looks at. */
export interface TenancyFacts {
  namespace: Namespace | undefined;
  /** Whether a Tenant of the namespace's label exists. */
  tenantExists: boolean;
  /** The namespace chosen for that tenant. */
  chosen: Namespace | undefined;
}

/** Decides which tenant the resources of a namespace belong to. */
export function decideTenancy({ namespace, tenantExists, chosen }: TenancyFacts): Tenancy {
  if (!namespace) return { problem: 'the namespace is not known yet' };
  const { name, labels } = namespace.metadata;
  const tenantId = labels?.[tenantLabel];
  if (!tenantId) return { problem: `namespace ${name} does not carry the label ${tenantLabel}` };
  if (!tenantExists) return { problem: `namespace ${name} names the tenant ${tenantId}, but there is no such Tenant` };
  if (!chosen) {
    return {
      problem: `namespace ${name} names the tenant ${tenantId}, but the Tenant does not name it (spec.namespace)`,
    };
  }
  if (chosen.metadata.name !== name) {
    return { problem: `the namespace of tenant ${tenantId} is ${chosen.metadata.name}; a tenant has one` };
  }
  return { tenantId };
}

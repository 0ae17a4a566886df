// Decides which namespace belongs to which tenant; each tenant has one. The namespace needs the label
// kellet.dev/tenant, and the Tenant must agree: being able to label a namespace must not give access to a tenant's
// resources and Secrets.
import { tenantLabel, tenantNamespaceName, type Tenant } from '@kellet/crds';
import { isBeingDeleted, type Namespace } from './resources.ts';

/** Returns the name of a tenant's namespace, whether or not it exists. */
export function namespaceNameOf(tenant: Tenant): string {
  return tenant.spec.namespace ?? tenantNamespaceName(tenant.metadata.name);
}

/** Reports whether a namespace may belong to a tenant: it has the label, and the Tenant names it or owns it. */
export function belongsTo(tenant: Tenant, { metadata }: Namespace): boolean {
  if (metadata.labels?.[tenantLabel] !== tenant.metadata.name) return false;
  return (
    metadata.name === tenant.spec.namespace ||
    (tenant.metadata.uid !== undefined &&
      (metadata.ownerReferences ?? []).some(({ uid }) => uid === tenant.metadata.uid))
  );
}

/**
 * Chooses the namespace of a tenant among those with its label: the one recorded in its status, else the one with its
 * name if it belongs to the tenant. A recreated namespace with the recorded name is not the recorded one. One that is
 * being deleted is not newly chosen.
 */
export function chooseNamespace(tenant: Tenant, labelled: readonly Namespace[]): Namespace | undefined {
  const { namespace: recorded, namespaceUid } = tenant.status ?? {};
  const kept = labelled.find(
    // Earlier versions of the operator recorded only the name.
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

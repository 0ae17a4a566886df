// Which namespace belongs to which tenant: one each, by the label kellet.dev/tenant.
import { tenantLabel, tenantNamespaceName } from '@kellet/crds';
import { isBeingDeleted, type Namespace } from './resources.ts';

/**
 * Chooses the namespace of a tenant among those that carry its label: the one recorded in its status, else the one named
 * after it, else the oldest; one that is on its way out is not chosen anew. A second one stays without a tenant.
 */
export function chooseNamespace(
  tenantId: string,
  recorded: string | undefined,
  labelled: readonly Namespace[],
): Namespace | undefined {
  const byName = (among: readonly Namespace[], name: string | undefined): Namespace | undefined =>
    among.find(({ metadata }) => metadata.name === name);
  const staying = labelled.filter((namespace) => !isBeingDeleted(namespace));
  const oldest = staying.toSorted(
    (a, b) =>
      (a.metadata.creationTimestamp ?? '').localeCompare(b.metadata.creationTimestamp ?? '') ||
      a.metadata.name.localeCompare(b.metadata.name),
  )[0];
  return byName(labelled, recorded) ?? byName(staying, tenantNamespaceName(tenantId)) ?? oldest;
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
  if (chosen && chosen.metadata.name !== name) {
    return { problem: `the namespace of tenant ${tenantId} is ${chosen.metadata.name}; a tenant has one` };
  }
  return { tenantId };
}

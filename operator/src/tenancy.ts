// Which namespace belongs to which tenant: one each. The label kellet.dev/tenant says so on the namespace's side, and the
// Tenant must agree: whoever may label a namespace does not thereby get a tenant's resources and Secrets.
import { createHmac, timingSafeEqual } from 'node:crypto';
import { tenantLabel, tenantNamespaceName, type Tenant } from '@kellet/crds';
import { isBeingDeleted, type Namespace } from './resources.ts';

/** Returns the name of the namespace that a tenant has, or is to have. */
export function namespaceNameOf(tenant: Tenant): string {
  return tenant.spec.namespace ?? tenantNamespaceName(tenant.metadata.name);
}

/** Annotation of a namespace that the operator has made; see namespaceSeal. */
export const namespaceSealAnnotation = 'kellet.dev/namespace-seal';

/**
 * Returns what the operator writes on the namespace that it makes for a Tenant. Whoever may write a namespace can claim any label
 * and any owner; this takes the operator's secret.
 */
export function namespaceSeal(secret: string, tenant: Tenant): string {
  const { name, uid = '' } = tenant.metadata;
  return createHmac('sha256', secret)
    .update(['kellet-namespace', name, uid, namespaceNameOf(tenant)].join('\n'))
    .digest('hex');
}

/** Reports whether a namespace is a tenant's: it carries the label, and the Tenant names it or the operator made it. */
export function belongsTo(tenant: Tenant, { metadata }: Namespace, secret: string): boolean {
  if (metadata.labels?.[tenantLabel] !== tenant.metadata.name) return false;
  if (metadata.name === tenant.spec.namespace) return true;
  if (metadata.name !== namespaceNameOf(tenant) || tenant.metadata.uid === undefined) return false;
  const seal = Buffer.from(metadata.annotations?.[namespaceSealAnnotation] ?? '');
  const wanted = Buffer.from(namespaceSeal(secret, tenant));
  return seal.length === wanted.length && timingSafeEqual(seal, wanted);
}

/**
 * Chooses the namespace of a tenant among those that carry its label: the one recorded in its status, else the one that it is
 * to have, if that belongs to it. A namespace of the recorded name that was made anew is no longer the recorded one. One that
 * is on its way out is not chosen anew.
 */
export function chooseNamespace(tenant: Tenant, labelled: readonly Namespace[], secret: string): Namespace | undefined {
  const { namespace: recorded, namespaceUid } = tenant.status ?? {};
  const kept = labelled.find(
    // Operators before this one recorded the name alone.
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

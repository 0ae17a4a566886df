// Tenant: creates or adopts the namespace of a tenant that the data plane accepts, finds or generates the initial
// password, and applies limits and defaults.
//
// RBAC: kellet.dev tenants: get, list, watch, patch (finalizers), delete (a cancelled creation); tenants/status: get,
// patch. namespaces: get, list, watch, create. secrets: see tenant-password.ts and secret-access.ts. events: create,
// patch.
import { randomBytes } from 'node:crypto';
import { apiVersion, createdByLabel, type Tenant, tenantLabel } from '@kellet/crds';
import { customResources, failureOf, namespaces, type ObjectKey } from '@kellet/kubernetes';
import type { ApplyRequest, ApplyResponse } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, findCondition, type Finding, holds, toConditions, unknown, withReady } from '../conditions.ts';
import { isOvertaken, overtakenRetryMilliseconds } from '../data-plane.ts';
import { hold, isHeld, release } from '../finalizers.ts';
import { toMeta } from '../messages.ts';
import { earliest, type Environment, mergeFindings, readyHappenings, type StatusFields } from '../reconciler.ts';
import { meaningOf, refusalFindings } from '../refusals.ts';
import { controlKinds, isBeingDeleted, type Namespace } from '../resources.ts';
import type { Outcome, ReconcileContext } from '../runtime/controller.ts';
import { belongsTo, namespaceNameOf, namespaceSeal, namespaceSealAnnotation } from '../tenancy.ts';
import { resolveAdminPassword } from './tenant-password.ts';

const aspects = ['Accepted', 'ReferencesResolved', 'Synced'];
const removalRetryMilliseconds = 10_000;
/** The end of the purge triggers a reconcile; the retry is a fallback. */
const graceRetryMilliseconds = 300_000;
const conflictRetryMilliseconds = 30_000;

/**
 * Returns the namespace to create for a tenant, sealed with the operator's secret. It is deleted with its owner, the
 * Tenant.
 */
function toNamespace(tenant: Tenant, secret: string): Namespace {
  const { name, uid = '' } = tenant.metadata;
  return {
    apiVersion: 'v1',
    kind: 'Namespace',
    metadata: {
      name: namespaceNameOf(tenant),
      labels: { [tenantLabel]: name, [createdByLabel]: 'operator' },
      annotations: { [namespaceSealAnnotation]: namespaceSeal(secret, tenant) },
      ownerReferences: [{ apiVersion, kind: 'Tenant', name, uid, controller: true, blockOwnerDeletion: false }],
    },
  };
}

/** Reconciles tenants. */
export class TenantReconciler {
  private readonly environment: Environment;

  constructor(environment: Environment) {
    this.environment = environment;
  }

  /** Reconciles a Tenant with its namespace and the data plane. */
  async reconcile({ name }: ObjectKey, context: ReconcileContext): Promise<Outcome> {
    const { client, cluster, statuses, secretAccess, ownNamespace } = this.environment;
    let tenant = cluster.get('Tenant', { namespace: '', name });
    if (!tenant) return {};
    const staleMilliseconds = statuses.staleFor(tenant);
    if (staleMilliseconds !== undefined) return { requeueAfterMilliseconds: staleMilliseconds };
    if (isBeingDeleted(tenant)) return this.remove(tenant);
    if (!isHeld(tenant)) tenant = await statuses.track(tenant.metadata.uid ?? '', hold(client, tenant));
    // The previous namespace remains recorded, because its resources are still in the data plane.
    const { namespace: recorded, namespaceUid } = tenant.status ?? {};
    const kept = { ...(recorded && { namespace: recorded }), ...(namespaceUid && { namespaceUid }) };
    const chosen = cluster.chosenNamespace(name);
    // Whoever makes a namespace of its name must not act for the tenant because of what that one grants.
    if ((!chosen || isBeingDeleted(chosen)) && !(await this.withdrawNamespace(tenant, kept))) {
      return { requeueAfterMilliseconds: overtakenRetryMilliseconds };
    }
    if (!chosen) {
      // A refused tenant gets no namespace.
      const { adminEmail: _, ...settings } = tenant.spec;
      const spec = { name, ...settings, namespace: namespaceNameOf(tenant) };
      const response = await this.apply(tenant, kept, spec, { dryRun: true });
      if (!response) return { requeueAfterMilliseconds: overtakenRetryMilliseconds };
      if (response.refusal) return this.refused(tenant, kept, response, [], context);
    }
    const namespace = chosen ?? (await this.makeNamespace(tenant));
    if ('conflict' in namespace) {
      const findings = [...wasSynced(tenant), fails('Ready', 'NamespaceConflict', namespace.conflict)];
      const outcome = await this.write(tenant, kept, findings);
      return earliest(outcome, conflictRetryMilliseconds);
    }
    const { metadata } = namespace;
    const status = { namespace: metadata.name, namespaceUid: metadata.uid } satisfies StatusFields<Tenant>;
    if (tenant.spec.namespace !== undefined && tenant.spec.namespace !== status.namespace) {
      const message = `spec.namespace must be ${status.namespace}, the tenant's current namespace`;
      return this.write(tenant, status, [...wasSynced(tenant), fails('Ready', 'NamespaceConflict', message)]);
    }
    // When the deletion is complete, it triggers a reconcile that creates a new one.
    if (isBeingDeleted(namespace)) {
      const message = `namespace ${status.namespace} is being deleted`;
      return this.write(tenant, status, [...wasSynced(tenant), fails('Ready', 'NamespaceTerminating', message)]);
    }
    const places = { tenant: status.namespace, own: ownNamespace };
    const ensureAccess = (): Promise<void> => secretAccess.ensure(tenant, namespace);
    const found = await secretAccess.using(
      namespace,
      resolveAdminPassword(client, tenant, places, ensureAccess, newPassword),
    );
    if ('missing' in found) {
      const findings = [
        holds('Accepted', 'Accepted'),
        found.missing,
        unknown('Synced', 'PasswordMissing', 'not applied: there is no password yet'),
      ];
      return earliest(await this.write(tenant, status, ready(findings)), found.retryMilliseconds);
    }
    const spec = { name, ...tenant.spec, namespace: status.namespace, adminPassword: found.password };
    const response = await this.apply(tenant, status, spec);
    if (!response) return { requeueAfterMilliseconds: overtakenRetryMilliseconds };
    if (response.refusal) return this.refused(tenant, status, response, [found.finding], context);
    const findings = mergeFindings(
      aspects.map((aspect) => holds(aspect, aspect)),
      [found.finding],
    );
    return this.write(tenant, status, ready(findings));
  }

  /**
   * States that the tenant has no namespace at present. The data plane may not have the tenant yet, or refuse it, which shows when it
   * is applied. Returns false if a newer version of the Tenant has been applied.
   */
  private async withdrawNamespace(tenant: Tenant, status: object): Promise<boolean> {
    // A data plane of an earlier release applies the rest.
    const { adminEmail: _, ...settings } = tenant.spec;
    const spec = { name: tenant.metadata.name, ...settings, namespace: '' };
    return (await this.apply(tenant, status, spec)) !== undefined;
  }

  /** Returns the data plane's response, or undefined if a newer version of the Tenant has been applied. */
  private async apply(
    tenant: Tenant,
    status: object,
    spec: ApplyRequest['spec'],
    { dryRun = false } = {},
  ): Promise<ApplyResponse | undefined> {
    try {
      const meta = toMeta(tenant.metadata.name, tenant);
      return await this.environment.dataPlane.apply({ meta, kind: controlKinds.Tenant, spec, dry_run: dryRun });
    } catch (error) {
      if (isOvertaken(error)) return undefined;
      await this.tellUnavailable(tenant, status, error);
      throw error;
    }
  }

  /**
   * Creates the tenant's namespace, or returns the existing one with its name if it belongs to the tenant; else the
   * conflict.
   */
  private async makeNamespace(tenant: Tenant): Promise<Namespace | { conflict: string }> {
    const { client, controlSecret } = this.environment;
    const wanted = toNamespace(tenant, controlSecret);
    try {
      return await client.create<Namespace>(namespaces, wanted);
    } catch (error) {
      if (failureOf(error) !== 'alreadyExists') throw error;
    }
    const existing = await client.get<Namespace>(namespaces, '', wanted.metadata.name);
    return belongsTo(tenant, existing, controlSecret) ? existing : { conflict: conflictOf(tenant, existing) };
  }

  private async refused(
    tenant: Tenant,
    status: object,
    { refusal }: ApplyResponse,
    found: Finding[],
    { logger }: ReconcileContext,
  ): Promise<Outcome> {
    if (refusal!.reason === 'IntentCancelled') {
      logger.info('deleting a tenant whose creation was cancelled');
      const { name, uid = '' } = tenant.metadata;
      await this.environment.client.delete(customResources.Tenant, '', name, uid).catch((error: unknown) => {
        if (failureOf(error) !== 'notFound') throw error;
      });
      return {};
    }
    const { final, retryMilliseconds } = meaningOf(refusal!);
    const findings = ready(mergeFindings(refusalFindings(refusal!, aspects), found));
    if (final) findings.push(holds('Stalled', findings.at(-1)!.reason, refusal!.message));
    return earliest(await this.write(tenant, status, findings), retryMilliseconds);
  }

  private async tellUnavailable(tenant: Tenant, status: object, error: unknown): Promise<void> {
    if (findCondition(tenant, 'Ready')?.observedGeneration === tenant.metadata.generation) return;
    const message = error instanceof Error ? error.message : String(error);
    await this.write(tenant, status, ready([unknown('Synced', 'DataPlaneUnavailable', message)]));
  }

  /**
   * Deletes the tenant in the data plane, and keeps the resource, and with it the namespace, until its data is purged, or
   * for as long as the deletion is undone there.
   */
  private async remove(tenant: Tenant): Promise<Outcome> {
    const { client, cluster, dataPlane, statuses, events } = this.environment;
    if (!isHeld(tenant)) return {};
    const { name } = tenant.metadata;
    // One that is restored keeps its namespace, but gets no other.
    const namespace = cluster.chosenNamespace(name);
    const detach = !namespace || isBeingDeleted(namespace);
    const { refusal } = await dataPlane.remove({ meta: toMeta(name, tenant), kind: controlKinds.Tenant, detach });
    if (refusal) {
      const findings: Finding[] = (tenant.status?.conditions ?? []).filter(({ type }) => type !== 'Ready');
      const isKept = refusal.reason === 'TenantDeleted' || refusal.reason === 'TenantRestored';
      const blocked = [...findings, fails('Ready', isKept ? refusal.reason : 'DeletionBlocked', refusal.message)];
      const outcome = await this.write(tenant, { ...tenant.status }, blocked);
      return earliest(outcome, isKept ? graceRetryMilliseconds : removalRetryMilliseconds);
    }
    events.record(tenant, { type: 'Normal', reason: 'Purged', message: 'the data of the tenant has been purged' });
    await release(client, tenant);
    statuses.forget(tenant);
    return {};
  }

  private async write(tenant: Tenant, fields: object, findings: Finding[]): Promise<Outcome> {
    const { statuses, clock, events } = this.environment;
    const generation = tenant.metadata.generation ?? 0;
    const conditions = toConditions(tenant.status?.conditions, findings, generation, clock.now());
    const status = { ...fields, observedGeneration: generation, conditions };
    const result = await statuses.write(tenant, status);
    if (typeof result === 'object') return { requeueAfterMilliseconds: result.deferMilliseconds };
    if (result === 'written')
      for (const happening of readyHappenings(tenant.status, status)) events.record(tenant, happening);
    return {};
  }
}

/**
 * Returns the condition that the data plane has the tenant, if it has. It holds without a namespace too, and shows later that
 * the administrator has a password (tenant-password.ts).
 */
const wasSynced = (tenant: Tenant): Finding[] => {
  const condition = findCondition(tenant, 'Synced');
  return condition?.status === 'True' ? [condition] : [];
};

/** Returns a message that explains why an existing namespace does not belong to the tenant, and what to do. */
function conflictOf(tenant: Tenant, { metadata: { name, labels } }: Namespace): string {
  const label = `${tenantLabel}=${tenant.metadata.name}`;
  if (labels?.[tenantLabel] !== tenant.metadata.name) {
    const missing = `namespace ${name} exists but does not have the label ${label}`;
    return tenant.spec.namespace === undefined
      ? `${missing}: delete it, or adopt it by setting the label and spec.namespace: ${name}`
      : `${missing}: set the label to adopt it`;
  }
  return `namespace ${name} was not created for this Tenant: delete it, or adopt it by setting spec.namespace: ${name}`;
}

function ready(findings: Finding[]): Finding[] {
  return withReady(findings, { reason: 'Synced', message: 'the tenant is ready for use' });
}

function newPassword(): string {
  return randomBytes(18).toString('base64url');
}

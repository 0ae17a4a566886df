// The common reconciler of the four namespaced kinds. A reconcile checks, in order: stale copy → deletion → tenant →
// finalizer → prepare → Apply → refusal → observe → status. Each kind implements `prepare` and `observe`.
//
// RBAC: kellet.dev deviceprofiles, provisioningtemplates, otapackages, otarollouts: get, list, watch, patch
// (finalizers), delete (a cancelled creation through REST); their /status: get, patch. namespaces: get, list, watch.
// events: create, patch.
import { customResources, failureOf, type KubernetesClient, type ObjectKey } from '@kellet/kubernetes';
import type { ApplyResponse } from '@kellet/proto/ts/kellet/control/v1/control';
import type { Cluster } from './cluster.ts';
import { fails, findCondition, type Finding, holds, toConditions, unknown, withReady } from './conditions.ts';
import { type DataPlane, isOvertaken, overtakenRetryMilliseconds } from './data-plane.ts';
import { hold, isHeld, release } from './finalizers.ts';
import { isHuge, isPart } from './large-resources.ts';
import { toMeta } from './messages.ts';
import { meaningOf, refusalFindings } from './refusals.ts';
import { controlKinds, type CustomResource, isBeingDeleted, type NamespacedKind, type ObjectOf } from './resources.ts';
import type { Clock } from './runtime/clock.ts';
import type { Outcome, ReconcileContext } from './runtime/controller.ts';
import type { EventRecorder, Happening } from './runtime/events.ts';
import type { Turns } from './runtime/turns.ts';
import type { SecretAccess } from './secret-access.ts';
import type { StatusWriter } from './status-writer.ts';

/** Dependencies of the reconcilers. */
export interface Environment {
  client: KubernetesClient;
  cluster: Cluster;
  dataPlane: DataPlane;
  statuses: StatusWriter;
  events: Pick<EventRecorder, 'record'>;
  /** The secret shared with the data plane. */
  controlSecret: string;
  secretAccess: SecretAccess;
  /** The operator's own namespace. */
  ownNamespace: string;
  /** Of huge resources, by namespace: each takes much memory while it is applied. */
  turns: Turns;
  clock: Clock;
}

/** The spec to apply with findings so far, or the findings that prevent applying it. */
export type Preparation =
  { spec: object; findings: Finding[] } | { blocked: Finding[]; requeueAfterMilliseconds?: number; status?: object };

/** Every field of a type, undefined where an optional one has no value, so that forgetting one does not compile. */
type Complete<T> = T extends readonly (infer Item)[]
  ? Complete<Item>[]
  : T extends object
    ? { [F in keyof Required<T>]: Complete<T[F]> }
    : T;

/** The status of a kind without what every kind has. */
export type StatusFields<T extends CustomResource> = Complete<
  Omit<NonNullable<T['status']>, 'conditions' | 'observedGeneration'>
>;

/** Result of a successful Apply. Findings include Ready. */
export interface Observation<T extends CustomResource> {
  status: StatusFields<T>;
  findings: Finding[];
  requeueAfterMilliseconds?: number;
}

/** The kind-specific part of a reconciler. */
export interface KindReconciler<K extends NamespacedKind> {
  kind: K;
  /** Condition types before Ready, in the order of evaluation. */
  aspects: readonly string[];
  /** By default the spec is applied as it is. */
  prepare?(object: ObjectOf[K], tenantId: string, context: ReconcileContext): Promise<Preparation>;
  observe(
    object: ObjectOf[K],
    tenantId: string,
    response: ApplyResponse,
    context: ReconcileContext,
  ): Promise<Observation<ObjectOf[K]>>;
  /** Returns the events for a change of status. By default changes of Ready are reported. */
  happenings?(before: ObjectOf[K]['status'], after: ObjectOf[K]['status']): Happening[];
}

/** Interval at which a blocked deletion is retried, in milliseconds. */
const removalRetryMilliseconds = 10_000;

/** Reconciles one kind. */
export class Reconciler<K extends NamespacedKind> {
  private readonly environment: Environment;
  private readonly kind: KindReconciler<K>;

  constructor(environment: Environment, kind: KindReconciler<K>) {
    this.environment = environment;
    this.kind = kind;
  }

  /** Applies one resource to the data plane and updates its status. */
  async reconcile(key: ObjectKey, context: ReconcileContext): Promise<Outcome> {
    const { client, cluster, statuses, turns } = this.environment;
    const object = cluster.get(this.kind.kind, key);
    if (!object) return {};
    const staleMilliseconds = statuses.staleFor(object);
    if (staleMilliseconds !== undefined) return { requeueAfterMilliseconds: staleMilliseconds };
    if (!isPart(object)) return this.reconcileWhole(object, key, context);
    const whole = async (): Promise<Outcome> => {
      const found = await client.find<ObjectOf[K]>(customResources[this.kind.kind], key.namespace, key.name);
      return found ? this.reconcileWhole(found, key, context) : {};
    };
    return isHuge(object) ? turns.run(key.namespace, whole) : whole();
  }

  private async reconcileWhole(object: ObjectOf[K], key: ObjectKey, context: ReconcileContext): Promise<Outcome> {
    const { client, cluster, statuses, dataPlane } = this.environment;
    if (isBeingDeleted(object)) return this.remove(object);
    // Nothing new is applied in a terminating namespace; an unknown one will be reported by the watch.
    if (cluster.isTerminating(key.namespace)) return {};
    const tenancy = cluster.tenancyOf(key.namespace);
    if ('problem' in tenancy) {
      return this.write(object, object.status ?? {}, [fails('Ready', 'NoTenant', tenancy.problem)]);
    }
    if (!isHeld(object)) object = await statuses.track(object.metadata.uid ?? '', hold(client, object));
    const asIs: Preparation = { spec: object.spec, findings: [] };
    const preparation = (await this.kind.prepare?.(object, tenancy.tenantId, context)) ?? asIs;
    if ('blocked' in preparation) {
      const status = { ...object.status, ...preparation.status };
      return earliest(await this.write(object, status, preparation.blocked), preparation.requeueAfterMilliseconds);
    }
    let response: ApplyResponse;
    try {
      const meta = toMeta(tenancy.tenantId, object);
      const kind = controlKinds[this.kind.kind];
      response = await dataPlane.apply({ meta, dry_run: false, kind, spec: preparation.spec });
    } catch (error) {
      if (isOvertaken(error)) return { requeueAfterMilliseconds: overtakenRetryMilliseconds };
      await this.reportUnavailable(object, error);
      throw error;
    }
    if (response.refusal) return this.refused(object, response, preparation.findings, context);
    const observation = await this.kind.observe(object, tenancy.tenantId, response, context);
    const findings = mergeFindings(observation.findings, preparation.findings);
    return earliest(await this.write(object, observation.status, findings), observation.requeueAfterMilliseconds);
  }

  private async refused(
    object: ObjectOf[K],
    { refusal, id }: ApplyResponse,
    prepared: Finding[],
    { logger }: ReconcileContext,
  ): Promise<Outcome> {
    if (refusal!.reason === 'IntentCancelled') {
      logger.info('deleting a resource whose creation was cancelled');
      const { namespace = '', name, uid = '' } = object.metadata;
      await this.environment.client
        .delete(customResources[object.kind], namespace, name, uid)
        .catch((error: unknown) => {
          if (failureOf(error) !== 'notFound') throw error;
        });
      return {};
    }
    const { final, retryMilliseconds } = meaningOf(refusal!);
    const judged = mergeFindings(refusalFindings(refusal!, this.kind.aspects), prepared);
    const findings = withReady(judged, { reason: 'Ready', message: '' });
    if (final) findings.push(holds('Stalled', findings.at(-1)!.reason, refusal!.message));
    const status = { ...object.status, ...(id && { [idFields[object.kind]]: id }) };
    return earliest(await this.write(object, status, findings), retryMilliseconds);
  }

  /**
   * Reports an outage in the status of a resource without conditions for this generation; others keep their conditions.
   */
  private async reportUnavailable(object: ObjectOf[K], error: unknown): Promise<void> {
    if (findCondition(object, 'Ready')?.observedGeneration === object.metadata.generation) return;
    const message = error instanceof Error ? error.message : String(error);
    const findings = [unknown('Synced', 'DataPlaneUnavailable', message)];
    await this.write(object, object.status ?? {}, withReady(findings, { reason: 'Ready', message: '' }));
  }

  private async remove(object: ObjectOf[K]): Promise<Outcome> {
    const { client, cluster, dataPlane, statuses } = this.environment;
    if (!isHeld(object)) return {};
    const { namespace = '' } = object.metadata;
    const tenancy = cluster.tenancyOf(namespace);
    // The resources of a namespace that lost its label are still in the data plane under the tenant.
    const tenantId = 'tenantId' in tenancy ? tenancy.tenantId : cluster.recordedTenant(namespace);
    if (tenantId !== undefined) {
      const { refusal } = await dataPlane.remove({
        meta: toMeta(tenantId, object),
        kind: controlKinds[this.kind.kind],
        detach: cluster.isTerminating(namespace),
      });
      if (refusal) {
        const findings: Finding[] = (object.status?.conditions ?? []).filter(({ type }) => type !== 'Ready');
        const blocked = fails('Ready', 'DeletionBlocked', refusal.message);
        return earliest(
          await this.write(object, object.status ?? {}, [...findings, blocked]),
          removalRetryMilliseconds,
        );
      }
    }
    await release(client, object);
    statuses.forget(object);
    return {};
  }

  private async write(object: ObjectOf[K], fields: object, findings: Finding[]): Promise<Outcome> {
    const { statuses, clock, events } = this.environment;
    const generation = object.metadata.generation ?? 0;
    const conditions = toConditions(object.status?.conditions, findings, generation, clock.now());
    const status = { ...fields, observedGeneration: generation, conditions } as NonNullable<ObjectOf[K]['status']>;
    const result = await statuses.write<CustomResource>(object, status);
    if (typeof result === 'object') return { requeueAfterMilliseconds: result.deferMilliseconds };
    if (result === 'written') {
      const tell = this.kind.happenings?.bind(this.kind) ?? readyHappenings;
      for (const happening of tell(object.status, status)) events.record(object, happening);
    }
    return {};
  }
}

/** Status field with the id in the data plane. */
const idFields: Record<NamespacedKind, string> = {
  DeviceProfile: 'profileId',
  ProvisioningTemplate: 'templateId',
  OtaPackage: 'packageId',
  OtaRollout: 'rolloutId',
};

/** Returns an event if Ready has changed. */
export function readyHappenings(before: CustomResource['status'], after: CustomResource['status']): Happening[] {
  const [was, is] = [before, after].map((status) => findCondition({ status }, 'Ready'));
  if (!is || (was?.status === is.status && was.reason === is.reason)) return [];
  const type = is.status === 'False' ? 'Warning' : 'Normal';
  return [{ type, reason: is.reason, message: is.message || `${is.type} is ${is.status}` }];
}

/** Replaces findings by those of the same type in `instead`. */
export function mergeFindings(findings: Finding[], instead: Finding[]): Finding[] {
  return findings.map((finding) => instead.find(({ type }) => type === finding.type) ?? finding);
}

/** Returns the outcome with the earlier requeue. */
export function earliest(outcome: Outcome, requeueAfterMilliseconds: number | undefined): Outcome {
  if (requeueAfterMilliseconds === undefined) return outcome;
  return { requeueAfterMilliseconds: Math.min(outcome.requeueAfterMilliseconds ?? Infinity, requeueAfterMilliseconds) };
}

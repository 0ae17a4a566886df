// Creation, change and deletion of custom resources on behalf of REST and gRPC callers (DECISIONS 13, 19).
import { create, type MessageShape } from '@bufbuild/protobuf';
import {
  createdByApi,
  createdByLabel,
  displayNameAnnotation,
  finalizer,
  intentAnnotation,
  type ObjectMeta,
} from '@kellet/crds';
import {
  RemoveRequestSchema,
  type ProvisioningTemplateSpec,
  type ApplyResponse,
  type DeviceProfileObservedSchema,
  type OtaPackageObservedSchema,
  type OtaRolloutObservedSchema,
  type ProvisioningTemplateObservedSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database.ts';
import {
  alreadyExists,
  failedPrecondition,
  invalidArgument,
  KelletError,
  notFound,
  unavailable,
} from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { KubernetesError, resourceOf, type KubernetesApi, type KubernetesObject } from '../platform/kubernetes.ts';
import type { Logger } from '../platform/logger.ts';
import type { CallContext } from '../platform/rpc.ts';
import { forgetDeleted, isOvertaken } from './applied-versions.ts';
import { refusalError, type Refusal } from './applier.ts';
import type { Dispatcher } from './dispatcher.ts';
import { asApplied, conflictMessage, foreignManager, managerOf, ownedFields } from './field-ownership.ts';
import { releaseDeleted } from './finalizers.ts';
import { cancelIntent, cancelOverdueIntents, intentState, openIntent, type Intent } from './intents.ts';
import { kindNumbers } from './kinds.ts';
import { applyRequest, metaOf, type ManagedKind, type ManagedSpecs } from './manifest.ts';
import { resourceName } from './resource-names.ts';
import { Turns } from './turns.ts';

/** What the data plane answers about a resource that it has taken up. */
export interface ManagedObserved {
  DeviceProfile: MessageShape<typeof DeviceProfileObservedSchema>;
  ProvisioningTemplate: MessageShape<typeof ProvisioningTemplateObservedSchema>;
  OtaPackage: MessageShape<typeof OtaPackageObservedSchema>;
  OtaRollout: MessageShape<typeof OtaRolloutObservedSchema>;
}

/** A resource to be made. */
export interface NewResource<K extends ManagedKind> {
  readonly kind: K;
  /** The name that the caller gave. */
  readonly displayName: string;
  /** metadata.name; absent: the DNS-safe form of displayName. */
  readonly name?: string;
  readonly spec: ManagedSpecs[K];
}

/** What is known of a provision key. */
type KeyOnRecord = Pick<ProvisioningTemplateSpec, 'keySha256' | 'keyBinding'>;

/** A change of a resource: top-level fields of the spec, where undefined takes a field away; the others stay. */
export interface ResourceChange<K extends ManagedKind> {
  readonly kind: K;
  readonly name: string;
  readonly displayName?: string;
  readonly annotations?: Readonly<Record<string, string>>;
  /** Of a template whose spec says nothing of its key: hash and binding of the new one. */
  readonly key?: KeyOnRecord;
  readonly spec: { readonly [F in keyof ManagedSpecs[K]]?: ManagedSpecs[K][F] | undefined };
}

/** A resource that the data plane has taken up. */
export interface TakenUp<K extends ManagedKind> {
  /** The id in the data plane. */
  readonly id: string;
  /** metadata.name. */
  readonly name: string;
  readonly observed: ManagedObserved[K];
}

/** How often a change is tried again because somebody else wrote the resource in between. */
const patchAttempts = 10;

/** How often a resource is read and applied anew because a newer version of it was applied in between. */
const applyAttempts = 5;

/** Within this time a resource must be taken up, else its creation is cancelled. */
const defaultDeadlineMilliseconds = 10_000;

/** Writes custom resources into a tenant's namespace and applies them in this process. */
export class ResourceWriter {
  private readonly database: Database;
  private readonly kubernetes: KubernetesApi;
  private readonly dispatcher: Dispatcher;
  private readonly logger: Logger;
  private readonly deadlineMilliseconds: number;
  private readonly turns = new Turns();

  constructor(options: {
    database: Database;
    kubernetes: KubernetesApi;
    dispatcher: Dispatcher;
    logger: Logger;
    deadlineMilliseconds?: number;
  }) {
    this.database = options.database;
    this.kubernetes = options.kubernetes;
    this.dispatcher = options.dispatcher;
    this.logger = options.logger;
    this.deadlineMilliseconds = options.deadlineMilliseconds ?? defaultDeadlineMilliseconds;
  }

  /**
   * Makes a custom resource and has the data plane take it up: both or neither. Throws ALREADY_EXISTS when the name is taken,
   * INVALID_ARGUMENT when the resource's schema refuses the spec, the error of a refusal, and UNAVAILABLE when it was not
   * taken up in time; nothing of it stays then.
   */
  async create<K extends ManagedKind>(context: CallContext, resource: NewResource<K>): Promise<TakenUp<K>> {
    const { tenantId } = context;
    const name = resource.name ?? resourceName(resource.displayName);
    const namespace = await this.namespaceOf(tenantId);
    const intent: Intent = { tenantId, intentId: newId(), kind: resource.kind, namespace, name };
    const deadline = AbortSignal.timeout(this.deadlineMilliseconds);
    const signal = AbortSignal.any([context.signal, deadline]);
    await this.database.tenant(tenantId, (tx) => openIntent(tx, intent, this.deadlineMilliseconds));
    try {
      const object = await this.post(
        resourceOf(resource.kind, metadataOf(intent, resource.displayName), resource.spec),
        signal,
      );
      const applying = this.applied(resource.kind, tenantId, object);
      // Whoever settles the intent first has decided; a late failure of the other must not go unheard as a rejection.
      applying.catch(() => undefined);
      const answer = await Promise.race([applying, aborted(signal)]);
      if (answer?.refusal) throw refusalError(answer.refusal as Refusal);
      if (!answer) throw unavailable('the resource was not taken up in time');
      const state = await this.database.read(tenantId, (tx) => intentState(tx, tenantId, intent.intentId));
      if (state !== 'active') throw new Error(`the applier of ${resource.kind} did not take the intent up`);
      return { id: answer.id, name, observed: observedOf(answer) };
    } catch (error) {
      const outcome = await this.cancel(intent);
      if (outcome !== 'active') throw error;
      // It was taken up in the last moment, here or by the operator: that has won.
      const object = await this.kubernetes.get<ManagedSpecs[K]>(resource.kind, namespace, name);
      if (!object) throw error;
      const answer = await this.applied(resource.kind, tenantId, object);
      if (answer.refusal) throw refusalError(answer.refusal as Refusal);
      return { id: answer.id, name, observed: observedOf(answer) };
    }
  }

  /**
   * Changes a resource by server-side apply without force and applies the result. Throws
   * FAILED_PRECONDITION when it is gone and, naming the manager, when another one owns a field, INVALID_ARGUMENT when the schema refuses the result. When the
   * data plane refuses it the change is taken back and the refusal's error is thrown.
   */
  async patch<K extends ManagedKind>(context: CallContext, change: ResourceChange<K>): Promise<TakenUp<K>> {
    const { kind, name } = change;
    const namespace = await this.namespaceOf(context.tenantId);
    // A change that the data plane refuses is taken back before the next one is made.
    return this.turns.take(`${kind}/${namespace}/${name}`, () => this.patchInTurn(context, namespace, change));
  }

  private async patchInTurn<K extends ManagedKind>(
    context: CallContext,
    namespace: string,
    change: ResourceChange<K>,
  ): Promise<TakenUp<K>> {
    const { kind, name } = change;
    const { before, after } = await this.changed(namespace, change, context.signal);
    const answer = await this.applied(kind, context.tenantId, after, change.key);
    if (!answer.refusal) return { id: answer.id, name, observed: observedOf(answer) };
    await this.kubernetes
      .apply(kind, withChange(before, { kind, name, spec: {} }))
      .catch((error: unknown) =>
        this.logger.warn({ err: error, kind, name }, 'a refused change could not be taken back'),
      );
    throw refusalError(answer.refusal as Refusal);
  }

  /** A resource as the API server holds it. Throws FAILED_PRECONDITION when it is gone. */
  async read<K extends ManagedKind>(
    context: CallContext,
    kind: K,
    name: string,
  ): Promise<KubernetesObject<ManagedSpecs[K]>> {
    const namespace = await this.namespaceOf(context.tenantId);
    const object = await this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name, context.signal);
    if (!object) throw failedPrecondition(`the custom resource ${name} is gone`);
    return object;
  }

  /**
   * Deletes a resource and its working copy. The caller has checked that nothing uses it, and removes its own row when there
   * is no resource (false). Throws FAILED_PRECONDITION when another manager owns the resource, or when the applier finds a use.
   */
  async remove(context: CallContext, kind: ManagedKind, name: string): Promise<boolean> {
    const namespace = await this.namespaceOf(context.tenantId);
    const object = await this.kubernetes.get(kind, namespace, name, context.signal);
    if (!object) return false;
    const manager = foreignManager(object);
    if (manager) throw failedPrecondition(`the resource is managed by ${manager}: delete it there`);
    await this.kubernetes.delete(kind, namespace, name, object.metadata.uid ?? '', context.signal);
    const meta = metaOf(context.tenantId, object);
    const request = create(RemoveRequestSchema, { meta, kind: kindNumbers[kind], detach: false });
    const { refusal } = await this.dispatcher.remove(request);
    if (refusal) throw refusalError(refusal as Refusal);
    await releaseDeleted(this.kubernetes, this.logger, { kind, namespace, name, uid: object.metadata.uid });
    return true;
  }

  /** Cancels creations whose process died before it could, deletes what they left in the cluster, and forgets what is over. */
  async sweep(): Promise<void> {
    const overdue = await this.database.system(async (tx) => {
      await forgetDeleted(tx);
      return cancelOverdueIntents(tx);
    });
    for (const intent of overdue) await this.deleteCancelled(intent);
  }

  private async namespaceOf(tenantId: string): Promise<string> {
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<{ namespace: string }>('SELECT namespace FROM tenants WHERE tenant_id = $1 AND deleted_at IS NULL', [
        tenantId,
      ]),
    );
    if (!rows[0]) throw notFound('tenant');
    return rows[0].namespace;
  }

  /** Creates; a resource of this name that is just being deleted is waited for until the signal aborts. */
  private async post<K extends ManagedKind>(
    object: KubernetesObject<ManagedSpecs[K]>,
    signal: AbortSignal,
  ): Promise<KubernetesObject<ManagedSpecs[K]>> {
    const kind = object.kind as K;
    const { namespace = '', name } = object.metadata;
    for (;;) {
      try {
        return await this.kubernetes.create(kind, object, signal);
      } catch (error) {
        if (!(error instanceof KubernetesError)) throw error;
        if (error.reason !== 'AlreadyExists') throw refusedByKubernetes(error);
      }
      const existing = await this.kubernetes.get(kind, namespace, name, signal);
      if (existing && !existing.metadata.deletionTimestamp) throw alreadyExists(`${name} already exists`);
      await sleep(100, signal);
    }
  }

  /**
   * Applies a change to the resource as it was read, and reads again when somebody else wrote in between: applying states all
   * that we own, so a stale reading would undo another caller's change.
   */
  private async changed<K extends ManagedKind>(
    namespace: string,
    change: ResourceChange<K>,
    signal: AbortSignal,
  ): Promise<{ before: KubernetesObject<ManagedSpecs[K]>; after: KubernetesObject<ManagedSpecs[K]> }> {
    const { kind, name } = change;
    for (let attempt = 0; attempt < patchAttempts && !signal.aborted; attempt += 1) {
      try {
        const before = await this.prepared<K>(kind, namespace, name, signal);
        refuseForeignRemoval(before, change);
        const wanted = withChange(before, change);
        const { resourceVersion } = before.metadata;
        const versioned = { ...wanted, metadata: { ...wanted.metadata, resourceVersion: resourceVersion ?? '' } };
        return { before, after: await this.kubernetes.apply(kind, versioned, signal) };
      } catch (error) {
        if (!(error instanceof KubernetesError)) throw error;
        if (error.status !== 409 || conflictMessage(error) !== undefined) throw refusedByKubernetes(error);
      }
      await sleep(20 * attempt, signal);
    }
    throw new KelletError('ABORTED', 'the resource is being changed by others at the same time; try again');
  }

  /** The resource as it is, in the form that apply goes on from. */
  private async prepared<K extends ManagedKind>(
    kind: K,
    namespace: string,
    name: string,
    signal: AbortSignal,
  ): Promise<KubernetesObject<ManagedSpecs[K]>> {
    const object = await this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name, signal);
    if (!object || object.metadata.deletionTimestamp) throw failedPrecondition(`the custom resource ${name} is gone`);
    const managedFields = asApplied(object);
    if (!managedFields) return object;
    const patch = { metadata: { resourceVersion: object.metadata.resourceVersion, managedFields } };
    return this.kubernetes.mergePatch<ManagedSpecs[K]>(kind, namespace, name, patch, signal);
  }

  /** Applies a resource; when a newer version of it has been applied meanwhile, from another process, then what it is now. */
  private async applied<K extends ManagedKind>(
    kind: K,
    tenantId: string,
    object: KubernetesObject<ManagedSpecs[K]>,
    key?: KeyOnRecord,
  ): Promise<ApplyResponse> {
    const { namespace = '', name } = object.metadata;
    let current: KubernetesObject<ManagedSpecs[K]> | undefined = object;
    for (let attempt = 1; current && !current.metadata.deletionTimestamp; attempt += 1) {
      const request = applyRequest(kind, tenantId, current);
      if (key && request.spec.case === 'provisioningTemplate') Object.assign(request.spec.value, key);
      try {
        return await this.dispatcher.apply(request);
      } catch (error) {
        if (!isOvertaken(error) || attempt === applyAttempts) throw error;
      }
      current = await this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name);
    }
    throw failedPrecondition(`the custom resource ${name} is gone`);
  }

  private async cancel(intent: Intent): Promise<'active' | 'cancelled' | 'unknown'> {
    try {
      const outcome = await this.database.tenant(intent.tenantId, (tx) =>
        cancelIntent(tx, intent.tenantId, intent.intentId),
      );
      // The answer waits for the deletion, but not for an API server that is away: the operator deletes what stays.
      if (outcome === 'cancelled') await Promise.race([this.deleteCancelled(intent), sleep(1000)]);
      return outcome;
    } catch (error) {
      // The sweep does it once the database is back.
      this.logger.warn({ err: error, intent: intent.intentId }, 'a creation could not be cancelled yet');
      return 'unknown';
    }
  }

  /** Best effort: what is left here the operator deletes, since applying it is refused as IntentCancelled. */
  private async deleteCancelled(intent: Intent): Promise<void> {
    const kind = intent.kind as ManagedKind;
    try {
      const object = await this.kubernetes.get(kind, intent.namespace, intent.name);
      const uid = object?.metadata.uid;
      if (!uid || object.metadata.annotations?.[intentAnnotation] !== intent.intentId) return;
      await this.kubernetes.delete(kind, intent.namespace, intent.name, uid);
      await releaseDeleted(this.kubernetes, this.logger, { kind, namespace: intent.namespace, name: intent.name, uid });
    } catch (error) {
      this.logger.warn({ err: error, kind, name: intent.name }, 'the resource of a cancelled creation stays for now');
    }
  }
}

function metadataOf(intent: Intent, displayName: string): ObjectMeta {
  const { namespace, name, intentId } = intent;
  return {
    namespace,
    name,
    labels: { [createdByLabel]: createdByApi },
    // From the first moment: a deletion that comes before the operator has seen the resource must be heard of.
    finalizers: [finalizer],
    annotations: {
      [intentAnnotation]: intentId,
      ...(displayName === name ? {} : { [displayNameAnnotation]: displayName }),
    },
  };
}

/** The configuration that we apply: what we own of the resource already, with the change. */
function withChange<K extends ManagedKind>(
  object: KubernetesObject<ManagedSpecs[K]>,
  change: ResourceChange<K>,
): KubernetesObject<ManagedSpecs[K]> {
  const { namespace, name } = object.metadata;
  const annotations = ours(object, object.metadata.annotations, 'metadata', 'annotations');
  Object.assign(annotations, change.annotations);
  if (change.displayName !== undefined) annotations[displayNameAnnotation] = change.displayName;
  const labels = ours(object, object.metadata.labels, 'metadata', 'labels');
  const metadata: ObjectMeta = { name };
  if (namespace !== undefined) metadata.namespace = namespace;
  if (Object.keys(labels).length > 0) metadata.labels = labels;
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  // What we stated once and state no more would be taken away.
  if (object.metadata.finalizers?.includes(finalizer)) metadata.finalizers = [finalizer];
  const spec: unknown = { ...ours(object, object.spec as Record<string, unknown>, 'spec'), ...change.spec };
  return resourceOf(change.kind, metadata, spec as ManagedSpecs[K]);
}

/** A field that another manager owns too would stay as it is when we let go of it. */
function refuseForeignRemoval<K extends ManagedKind>(
  object: KubernetesObject<unknown>,
  change: ResourceChange<K>,
): void {
  for (const [field, value] of Object.entries(change.spec)) {
    const manager = value === undefined ? managerOf(object, field) : undefined;
    if (manager) throw failedPrecondition(`.spec.${field} is managed by ${manager}`);
  }
}

/** Those of the values at this path of the resource that we own. */
function ours<T>(
  object: KubernetesObject<unknown>,
  values: Record<string, T> = {},
  ...path: string[]
): Record<string, T> {
  const owned = ownedFields(object, ...path);
  return Object.fromEntries(Object.entries(values).filter(([key]) => owned.has(key)));
}

const observedOf = <K extends ManagedKind>(answer: ApplyResponse): ManagedObserved[K] =>
  answer.observed.value as ManagedObserved[K];

/** Resolves with nothing once the signal aborts. */
const aborted = (signal: AbortSignal): Promise<undefined> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener('abort', () => resolve(undefined), { once: true });
  });

/** What the API server's refusal means to the caller. */
export function refusedByKubernetes(error: KubernetesError): Error {
  if (error.status === 422 || error.status === 400) {
    const causes = error.causes.map((cause) => `${cause.field ?? ''}: ${cause.message ?? ''}`);
    return invalidArgument(causes.length > 0 ? causes.join('; ') : error.message);
  }
  if (error.status === 409) return failedPrecondition(conflictMessage(error) ?? error.message);
  // No namespace, or the definitions are not installed: the tenant is not ready to hold resources.
  if (error.status === 404) return unavailable("the tenant's namespace cannot hold resources now", error);
  return error;
}

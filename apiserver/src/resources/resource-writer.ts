// Creation, change and deletion of custom resources on behalf of REST and gRPC callers.
import { create } from '@bufbuild/protobuf';
import { displayNameAnnotation, finalizer, type ObjectMeta, type ProvisioningTemplateSpec } from '@kellet/crds';
import { KubernetesError } from '@kellet/kubernetes';
import {
  RemoveRequestSchema,
  type ApplyRequest,
  type ApplyResponse,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { sleep } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { failedPrecondition, KelletError, notFound } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { type KubernetesApi, type KubernetesObject, resourceOf } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { CallContext } from '../platform/rpc.ts';
import { forgetDeleted, isOvertaken } from '../control/applied-versions.ts';
import { refusalError, type LastStep } from '../control/applier.ts';
import { Creations, metadataOf } from './creations.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { inContract } from '../control/field-names.ts';
import { asApplied, conflictMessage, foreignManager, keptByAnother, ownedFields } from './field-ownership.ts';
import { releaseDeleted } from './finalizers.ts';
import { cancelOverdueIntents, type Intent } from '../control/intents.ts';
import { kindNumbers } from '../control/kinds.ts';
import { refusedByKubernetes } from './kubernetes-refusals.ts';
import { applyRequest, metaOf, workingCopyId, type ManagedKind, type ManagedSpecs } from './manifest.ts';
import { resourceName } from './resource-names.ts';
import { Turns } from '../platform/turns.ts';
import { namespaceOf } from '../policies/tenant-reader.ts';

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
type KeyOnRecord = Required<Pick<ProvisioningTemplateSpec, 'keySha256' | 'keyBinding'>>;

/** A change of a resource: top-level fields of the spec, where undefined takes a field away; the others stay. */
export interface ResourceChange<K extends ManagedKind> {
  readonly kind: K;
  readonly name: string;
  readonly displayName?: string;
  readonly annotations?: Readonly<Record<string, string>>;
  /** Of a template whose spec says nothing of its key: hash and binding of the new one. */
  readonly key?: KeyOnRecord;
  readonly spec: { readonly [F in keyof ManagedSpecs[K]]?: ManagedSpecs[K][F] | undefined };
  /**
   * Stated when the change would leave a spec without any field. Kubernetes makes null of an empty object that is applied over
   * one whose fields we own, and refuses that.
   */
  readonly leastSpec?: Partial<ManagedSpecs[K]>;
}

/** How often a change is tried again because somebody else wrote the resource in between. */
const patchAttempts = 10;

/** How often a resource is read and applied anew because a newer version of it was applied in between. */
const applyAttempts = 5;

/** Writes custom resources into a tenant's namespace and applies them in this process. */
export class ResourceWriter {
  private readonly database: Database;
  private readonly kubernetes: KubernetesApi;
  private readonly dispatcher: Dispatcher;
  private readonly logger: Logger;
  private readonly creations: Creations;
  private readonly turns = new Turns();

  constructor(options: {
    database: Database;
    kubernetes: KubernetesApi;
    dispatcher: Dispatcher;
    logger: Logger;
    deadlineMilliseconds?: number;
    settleMilliseconds?: number;
  }) {
    this.database = options.database;
    this.kubernetes = options.kubernetes;
    this.dispatcher = options.dispatcher;
    this.logger = options.logger;
    this.creations = new Creations(options);
  }

  /**
   * Makes a custom resource and has the data plane take it up: both or neither (Creations.make). Returns what `read` finds of
   * the working copy, in the transaction that wrote it.
   */
  async create<K extends ManagedKind, T>(
    context: CallContext,
    resource: NewResource<K>,
    read: (tx: Transaction, id: string) => Promise<T>,
  ): Promise<T> {
    const { tenantId } = context;
    const { kind } = resource;
    const { intent, object } = await this.begun(context, resource);
    const id = workingCopyId(kind, tenantId, object);
    return this.creations.make(context, {
      intent,
      object,
      apply: (posted, last) => this.applied(kind, tenantId, posted, { last }),
      read: (tx) => read(tx, id),
    });
  }

  /**
   * Throws what `create` would throw of the resource itself: ALREADY_EXISTS, or INVALID_ARGUMENT of its schema. Returns the
   * request that would be applied. Makes nothing.
   */
  async foresee<K extends ManagedKind>(context: CallContext, resource: NewResource<K>): Promise<ApplyRequest> {
    const { intent, object } = await this.begun(context, resource);
    await this.creations.foresee(intent, object, context.signal);
    return applyRequest(resource.kind, context.tenantId, object);
  }

  private async begun<K extends ManagedKind>(
    { tenantId }: CallContext,
    { kind, displayName, spec, ...given }: NewResource<K>,
  ) {
    const name = given.name ?? resourceName(displayName);
    const namespace = await this.namespaceOf(tenantId);
    const intent: Intent = { tenantId, intentId: newId(), kind, namespace, name };
    return { intent, object: resourceOf(kind, metadataOf(intent, displayName), spec) };
  }

  /**
   * Changes a resource by server-side apply without force and applies the result. Throws
   * FAILED_PRECONDITION when it is gone and, naming the manager, when another one owns a field, INVALID_ARGUMENT when the schema refuses the result. When the
   * data plane refuses it the change is taken back and the refusal's error is thrown.
   */
  async patch<K extends ManagedKind>(context: CallContext, change: ResourceChange<K>): Promise<void> {
    const { kind, name } = change;
    const namespace = await this.namespaceOf(context.tenantId);
    // A change that the data plane refuses is taken back before the next one is made.
    return this.turns.run(`${kind}/${namespace}/${name}`, () => this.patchInTurn(context, namespace, change));
  }

  private async patchInTurn<K extends ManagedKind>(
    context: CallContext,
    namespace: string,
    change: ResourceChange<K>,
  ): Promise<void> {
    const { kind, name } = change;
    const { before, after } = await this.changed(namespace, change, context.signal);
    const answer = await this.applied(kind, context.tenantId, after, { key: change.key });
    if (!answer.refusal) return;
    await this.kubernetes
      .apply(kind, withChange(before, { kind, name, spec: {} }))
      .catch((error: unknown) =>
        this.logger.warn({ err: error, kind, name }, 'a refused change could not be taken back'),
      );
    throw refusalError(kind, answer.refusal);
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
    if (refusal) throw refusalError(kind, refusal);
    await releaseDeleted(this.kubernetes, this.logger, { kind, namespace, name, uid: object.metadata.uid });
    return true;
  }

  /** Cancels creations whose process died before it could, deletes what cancelled ones left in the cluster, and forgets what is over. */
  async sweep(): Promise<void> {
    const cancelled = await this.database.system(async (tx) => {
      await forgetDeleted(tx);
      return cancelOverdueIntents(tx);
    });
    for (const intent of cancelled) await this.creations.deleteCancelled(intent);
  }

  private async namespaceOf(tenantId: string): Promise<string> {
    const tenant = await this.database.read(tenantId, (tx) => namespaceOf(tx, tenantId));
    if (!tenant || tenant.deleted) throw notFound('tenant');
    return tenant.namespace;
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
        if (error.failure !== 'conflict' || conflictMessage(error) !== undefined)
          throw refusedByKubernetes(kind, error);
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
    { key, last }: { key?: KeyOnRecord | undefined; last?: LastStep } = {},
  ): Promise<ApplyResponse> {
    const { namespace = '', name } = object.metadata;
    let current: KubernetesObject<ManagedSpecs[K]> | undefined = object;
    for (let attempt = 1; current && !current.metadata.deletionTimestamp; attempt += 1) {
      const request = applyRequest(kind, tenantId, key ? { ...current, spec: { ...current.spec, ...key } } : current);
      try {
        return await this.dispatcher.apply(request, last);
      } catch (error) {
        if (!isOvertaken(error) || attempt === applyAttempts) throw error;
      }
      current = await this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name);
    }
    throw failedPrecondition(`the custom resource ${name} is gone`);
  }
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
  const isEmpty = Object.values({ ...object.spec, ...change.spec }).every((value) => value === undefined);
  const spec: unknown = {
    ...ours(object, object.spec as Record<string, unknown>, 'spec'),
    ...change.spec,
    ...(isEmpty ? change.leastSpec : {}),
  };
  return resourceOf(change.kind, metadata, spec as ManagedSpecs[K]);
}

/** Refuses to leave out what another manager owns too: it would stay as it is. */
function refuseForeignRemoval<K extends ManagedKind>(
  object: KubernetesObject<unknown>,
  change: ResourceChange<K>,
): void {
  for (const [field, value] of Object.entries(change.spec)) {
    const kept = keptByAnother(object, field, value);
    if (kept) throw failedPrecondition(inContract(change.kind, `${kept.path} is managed by ${kept.manager}`));
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

// Creates, changes and deletes custom resources for REST and gRPC callers.
import { create } from '@bufbuild/protobuf';
import { displayNameAnnotation, finalizer, type ObjectMeta, type ProvisioningTemplateSpec } from '@kellet/crds';
import { KubernetesError } from '@kellet/kubernetes';
import {
  type ApplyRequest,
  type ApplyResponse,
  RemoveRequestSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { refuseLosses } from '../auth/credentials/refuse-losses.ts';
import { forgetDeleted, isOvertaken } from '../control/applied-versions.ts';
import { type LastStep, refusalError } from '../control/applier.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { inContract } from '../control/field-names.ts';
import { cancelOverdueIntents, type Intent } from '../control/intents.ts';
import { kindNumbers } from '../control/kinds.ts';
import { sleep } from '../platform/clock.ts';
import { FairSlots } from '../platform/concurrency/fair-slots.ts';
import { KeyedMutex } from '../platform/concurrency/keyed-mutex.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { failedPrecondition, halfDone, KelletError, notFound, unavailable } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { type KubernetesApi, type KubernetesObject, resourceOf } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { CallContext } from '../platform/rpc.ts';
import { namespaceOf } from '../policies/tenant-reader.ts';
import { Creations, metadataOf } from './creations.ts';
import { asApplied, conflictMessage, foreignManager, keptByAnother, ownValues } from './field-ownership.ts';
import { releaseDeleted } from './finalizers.ts';
import { refusedByKubernetes } from './kubernetes-refusals.ts';
import { applyRequest, type ManagedKind, type ManagedSpecs, metaOf, workingCopyId } from './manifest.ts';
import { resourceName } from './resource-names.ts';

/** A resource to create. */
export interface NewResource<K extends ManagedKind> {
  readonly kind: K;
  /** The name chosen by the caller. */
  readonly displayName: string;
  /** metadata.name; by default the DNS-safe form of displayName. */
  readonly name?: string;
  readonly spec: ManagedSpecs[K];
}

/** The hash and binding of a provision key. */
type KeyOnRecord = Required<Pick<ProvisioningTemplateSpec, 'keySha256' | 'keyBinding'>>;

/** A change of one field of a spec, which may be nested; undefined removes it. */
export interface SpecChange {
  readonly path: readonly string[];
  readonly value: unknown;
}

/** A change of a resource. Fields that it does not name are unchanged. */
export interface ResourceChange<K extends ManagedKind> {
  readonly kind: K;
  readonly name: string;
  readonly displayName?: string;
  readonly annotations?: Readonly<Record<string, string>>;
  /** Hash and binding of a template's new key, if its spec does not contain them. */
  readonly key?: KeyOnRecord;
  readonly spec: readonly SpecChange[];
  /**
   * Fields to apply if the change would leave the spec empty. If an empty object is applied over one whose fields we own,
   * Kubernetes turns it into null and rejects that.
   */
  readonly leastSpec?: Partial<ManagedSpecs[K]>;
}

/** Maximum number of attempts to change a resource that is modified concurrently. */
const patchAttempts = 10;

/** Maximum number of attempts to apply a resource of which newer versions are applied concurrently. */
const applyAttempts = 5;

/** How often a namespace is looked for that the operator has not confirmed yet, and the pause in between: five seconds in all. */
const confirmationLooks = 50;
const confirmationMilliseconds = 100;

/**
 * Resources that a process changes, reads and deletes at a time: each may be as large as etcd stores, and is in memory several times
 * while it waits for the API server.
 */
const heldAtOnce = { total: 16, perOwner: 4, waitingPerOwner: 1000 };

/** How long a call waits for its turn. */
const defaultTurnMilliseconds = 10_000;

/** Writes custom resources into a tenant's namespace and applies them in this process. */
export class ResourceWriter {
  private readonly database: Database;
  private readonly kubernetes: KubernetesApi;
  private readonly dispatcher: Dispatcher;
  private readonly logger: Logger;
  private readonly creations: Creations;
  private readonly turns = new KeyedMutex();
  private readonly turnMilliseconds: number;
  private readonly slots = new FairSlots({
    ...heldAtOnce,
    refusal: () => unavailable('too many resources are being changed: try again'),
  });

  constructor(options: {
    database: Database;
    kubernetes: KubernetesApi;
    dispatcher: Dispatcher;
    logger: Logger;
    deadlineMilliseconds?: number;
    settleMilliseconds?: number;
    turnMilliseconds?: number;
  }) {
    this.database = options.database;
    this.kubernetes = options.kubernetes;
    this.dispatcher = options.dispatcher;
    this.logger = options.logger;
    this.creations = new Creations(options);
    this.turnMilliseconds = options.turnMilliseconds ?? defaultTurnMilliseconds;
  }

  /**
   * Creates a custom resource and its working copy, both or neither (Creations.make). Returns the result of `read`, which
   * runs in the transaction that writes the working copy.
   */
  async create<K extends ManagedKind, T>(
    context: CallContext,
    resource: NewResource<K>,
    read: (tx: Transaction, id: string) => Promise<T>,
  ): Promise<T> {
    const { tenantId, caller } = context;
    const { kind } = resource;
    const { intent, object } = await this.begun(context, resource);
    const id = workingCopyId(kind, tenantId, object);
    return this.creations.make(context, {
      intent,
      object,
      apply: (posted, last) =>
        this.applied(kind, tenantId, posted, {
          last: async (tx) => {
            await refuseLosses(tx, caller);
            await last(tx);
          },
        }),
      read: (tx) => read(tx, id),
    });
  }

  /**
   * Checks a resource with a dry run. Throws ALREADY_EXISTS or INVALID_ARGUMENT like `create`. Returns the request that
   * `create` would apply.
   */
  async foresee<K extends ManagedKind>(context: CallContext, resource: NewResource<K>): Promise<ApplyRequest> {
    const { intent, object } = await this.begun(context, resource);
    await this.creations.foresee(intent, object, context.signal);
    return applyRequest(resource.kind, context.tenantId, object);
  }

  private async begun<K extends ManagedKind>(
    context: CallContext,
    { kind, displayName, spec, ...given }: NewResource<K>,
  ) {
    const { tenantId } = context;
    const name = given.name ?? resourceName(displayName);
    const namespace = await this.namespaceOf(context);
    const intent: Intent = { tenantId, intentId: newId(), kind, namespace, name };
    return { intent, object: resourceOf(kind, metadataOf(intent, displayName), spec) };
  }

  /**
   * Changes a resource by server-side apply without force, and applies the result to the data plane. Throws
   * FAILED_PRECONDITION if the resource does not exist or another manager, named in the message, owns a field, and
   * INVALID_ARGUMENT if the schema rejects the result. If the data plane refuses the change, it is reverted, and the
   * refusal is thrown. Throws CANCELLED if the resource is changed although the call fails.
   */
  async patch<K extends ManagedKind>(context: CallContext, change: ResourceChange<K>): Promise<void> {
    const { kind, name } = change;
    const namespace = await this.namespaceOf(context);
    // Serialised, so that a refused change is reverted before the next one. Within the slot, for which a call waits only so long:
    // of very many changes of one resource, none is carried out long after its caller was admitted.
    return this.inSlot(context, () =>
      this.turns.run(`${kind}/${namespace}/${name}`, () => this.patchInTurn(context, namespace, change)),
    );
  }

  private inSlot<T>({ tenantId, signal }: CallContext, work: () => Promise<T>): Promise<T> {
    return this.slots.run(tenantId, work, { milliseconds: this.turnMilliseconds, signal });
  }

  private async patchInTurn<K extends ManagedKind>(
    context: CallContext,
    namespace: string,
    change: ResourceChange<K>,
  ): Promise<void> {
    const { kind, name } = change;
    await this.database.read(context.tenantId, (tx) => refuseLosses(tx, context.caller));
    const { before, after } = await this.changed(namespace, change, context.signal);
    const { refusal } = await this.applied(kind, context.tenantId, after, { key: change.key });
    if (!refusal) return;
    const refused = changeRefused(change, refusal);
    try {
      await this.kubernetes.apply(kind, withChange(before, { kind, name, spec: [] }));
    } catch (error) {
      this.logger.warn({ err: error, kind, name }, 'failed to revert a refused change');
      throw halfDone(`${refused.message}: the custom resource is changed nevertheless`, refused);
    }
    throw refused;
  }

  /** Reads a resource from the API server. Throws FAILED_PRECONDITION if it does not exist. */
  async read<K extends ManagedKind>(
    context: CallContext,
    kind: K,
    name: string,
  ): Promise<KubernetesObject<ManagedSpecs[K]>> {
    const namespace = await this.namespaceOf(context);
    const object = await this.inSlot(context, () =>
      this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name, context.signal),
    );
    if (!object) throw gone(name, object);
    return object;
  }

  /**
   * Deletes a resource and its working copy, after the caller has checked that it is not in use. Returns false if there is no
   * resource; the caller then deletes its own row. Throws FAILED_PRECONDITION if another manager owns the resource, and CANCELLED
   * if it has come into use since: then the operator deletes it once it is not in use any more.
   */
  async remove(context: CallContext, kind: ManagedKind, name: string): Promise<boolean> {
    const namespace = await this.namespaceOf(context);
    return this.inSlot(context, () => this.removeInTurn(context, { kind, namespace, name }));
  }

  private async removeInTurn(
    context: CallContext,
    { kind, namespace, name }: { readonly kind: ManagedKind; readonly namespace: string; readonly name: string },
  ): Promise<boolean> {
    await this.database.read(context.tenantId, (tx) => refuseLosses(tx, context.caller));
    const object = await this.kubernetes.get(kind, namespace, name, context.signal);
    if (!object) return false;
    const manager = foreignManager(object);
    if (manager) throw failedPrecondition(`the resource is managed by ${manager}: delete it there`);
    await this.kubernetes.delete(kind, namespace, name, object.metadata.uid ?? '', context.signal);
    const meta = metaOf(context.tenantId, object);
    const request = create(RemoveRequestSchema, { meta, kind: kindNumbers[kind], detach: false });
    const { refusal } = await this.dispatcher.remove(request);
    if (refusal) throw begun(refusalError(kind, refusal));
    await releaseDeleted(this.kubernetes, this.logger, { kind, namespace, name, uid: object.metadata.uid });
    return true;
  }

  /** Cancels overdue creations, deletes the resources of cancelled ones from the cluster, and drops old records. */
  async sweep(): Promise<void> {
    const cancelled = await this.database.system(async (tx) => {
      await forgetDeleted(tx);
      return cancelOverdueIntents(tx);
    });
    for (const intent of cancelled) await this.creations.deleteCancelled(intent);
  }

  /**
   * Returns the namespace of a tenant's resources. They must not go into one that only has its name, so this waits until the operator
   * has found it to be the tenant's, which follows shortly after its creation. Throws UNAVAILABLE if that takes too long.
   */
  private async namespaceOf({ tenantId, signal }: Pick<CallContext, 'tenantId' | 'signal'>): Promise<string> {
    for (let attempt = 0; ; attempt += 1) {
      const tenant = await this.database.read(tenantId, (tx) => namespaceOf(tx, tenantId));
      if (!tenant || tenant.deleted) throw notFound('tenant');
      if (tenant.confirmed) return tenant.namespace;
      if (attempt === confirmationLooks || signal.aborted) throw unavailable("the tenant's namespace is not ready");
      await sleep(confirmationMilliseconds, signal);
    }
  }

  /**
   * Applies a change, and retries if the resource is modified concurrently: server-side apply sends all fields that we own,
   * so applying a stale copy would revert another caller's change.
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
    throw new KelletError('ABORTED', 'the resource is being modified concurrently: retry');
  }

  /** Reads a resource, and converts it for server-side apply if necessary (asApplied). */
  private async prepared<K extends ManagedKind>(
    kind: K,
    namespace: string,
    name: string,
    signal: AbortSignal,
  ): Promise<KubernetesObject<ManagedSpecs[K]>> {
    const object = await this.kubernetes.get<ManagedSpecs[K]>(kind, namespace, name, signal);
    if (!object || object.metadata.deletionTimestamp) throw gone(name, object);
    const managedFields = asApplied(object);
    if (!managedFields) return object;
    const patch = { metadata: { resourceVersion: object.metadata.resourceVersion, managedFields } };
    return this.kubernetes.mergePatch<ManagedSpecs[K]>(kind, namespace, name, patch, signal);
  }

  /** Applies a resource to the data plane. If another process has applied a newer version, rereads and applies that. */
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
    throw gone(name, current);
  }
}

/** Returns the error for a resource that does not exist, or that is being deleted and cannot be changed any more. */
const gone = (name: string, object: KubernetesObject<unknown> | undefined): KelletError =>
  failedPrecondition(`the custom resource ${name} ${object ? 'is being deleted' : 'no longer exists'}`);

/** Returns the error of a deletion that waits, which cannot be undone. */
const begun = (cause: KelletError): KelletError =>
  halfDone(`${cause.message}: the deletion has begun, and ends once it is not used any more`, cause);

/**
 * Returns the error for a refused change. A refusal can be for a value that the resource had before, and that the caller
 * has not sent.
 */
function changeRefused<K extends ManagedKind>(
  { kind, spec }: ResourceChange<K>,
  refusal: { readonly reason: string; readonly message: string },
): KelletError {
  const fields = [...refusal.message.matchAll(/\bspec\.(\w+(?:\.\w+)*)/g)].map(([, field]) => field!.split('.'));
  const isNamed = (field: readonly string[]): boolean =>
    spec.some(({ path }) => field.every((name, index) => index >= path.length || path[index] === name));
  if (fields.length === 0 || fields.some(isNamed)) return refusalError(kind, refusal);
  const message = `${refusal.message} (this value is the custom resource's; the request does not change it)`;
  return refusalError(kind, { reason: refusal.reason, message });
}

/** Returns the configuration to apply: all fields that we own, with the change. */
function withChange<K extends ManagedKind>(
  object: KubernetesObject<ManagedSpecs[K]>,
  change: ResourceChange<K>,
): KubernetesObject<ManagedSpecs[K]> {
  const { namespace, name } = object.metadata;
  const annotations = ownTexts(object, 'annotations');
  Object.assign(annotations, change.annotations);
  if (change.displayName !== undefined) annotations[displayNameAnnotation] = change.displayName;
  const labels = ownTexts(object, 'labels');
  const metadata: ObjectMeta = { name };
  if (namespace !== undefined) metadata.namespace = namespace;
  if (Object.keys(labels).length > 0) metadata.labels = labels;
  if (Object.keys(annotations).length > 0) metadata.annotations = annotations;
  // Server-side apply would remove it if it were omitted.
  if (object.metadata.finalizers?.includes(finalizer)) metadata.finalizers = [finalizer];
  const isEmpty = Object.keys(changed(object.spec as Fields, change.spec)).length === 0;
  const spec: unknown = {
    ...changed(ownValues(object, object.spec, 'spec'), change.spec),
    ...(isEmpty ? change.leastSpec : {}),
  };
  return resourceOf(change.kind, metadata, spec as ManagedSpecs[K]);
}

type Fields = Record<string, unknown>;

/**
 * Returns the values after the changes, without objects that these leave empty: if an empty object is applied over one
 * whose fields we own, Kubernetes turns it into null and rejects that.
 */
function changed(values: Fields, changes: readonly SpecChange[]): Fields {
  const result = { ...values };
  for (const [name, own] of Map.groupBy(changes, ({ path }) => path[0]!)) {
    const whole = own.findLast(({ path }) => path.length === 1);
    const parts = own.flatMap(({ path, value }) => (path.length > 1 ? [{ path: path.slice(1), value }] : []));
    let value = whole ? whole.value : result[name];
    if (parts.length > 0) value = changed((value ?? {}) as Fields, parts);
    const isRemoved = value === undefined || (parts.length > 0 && Object.keys(value as Fields).length === 0);
    if (isRemoved) delete result[name];
    else result[name] = value;
  }
  return result;
}

/** Throws FAILED_PRECONDITION if the change removes a value that another manager owns too, because it would remain. */
function refuseForeignRemoval<K extends ManagedKind>(
  object: KubernetesObject<unknown>,
  change: ResourceChange<K>,
): void {
  for (const { path, value } of change.spec) {
    const kept = keptByAnother(object, path, value);
    if (kept) throw failedPrecondition(inContract(change.kind, `${kept.path} is managed by ${kept.manager}`));
  }
}

/** Returns the labels or annotations that we own. */
const ownTexts = (object: KubernetesObject<unknown>, what: 'labels' | 'annotations'): Record<string, string> =>
  ownValues(object, object.metadata[what], 'metadata', what) as Record<string, string>;

// Tenants created and deleted through the API: the Tenant resource and its row, both or neither.
import { create } from '@bufbuild/protobuf';
import type { Kind, TenantSpec as Manifest } from '@kellet/crds';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { CreateTenantRequest } from '@kellet/proto/es/kellet/v1/auth_pb';
import { notifyChanged } from '../control/changes.ts';
import type { Intent } from '../control/intents.ts';
import { specOf } from '../control/manifest-mapping.ts';
import type { Transaction } from '../platform/database/database.ts';
import { alreadyExists, failedPrecondition } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { type KubernetesObject, resourceOf } from '../platform/kubernetes/kubernetes.ts';
import type { CallContext } from '../platform/rpc.ts';
import { namespaceOf } from '../policies/tenant-reader.ts';
import { Creations, type CreationsOptions, metadataOf } from '../resources/creations.ts';
import { foreignManager } from '../resources/field-ownership.ts';
import { metaOf } from '../resources/manifest.ts';
import type { TenantApplier } from './tenant-applier.ts';
import { holdDeletion, markRestored } from './tenant-store.ts';

const kind: Kind = 'Tenant';

/** Dependencies of TenantResources. */
export interface TenantResourcesOptions extends CreationsOptions {
  readonly applier: TenantApplier;
}

/** Writes Tenant resources and applies them in this process. */
export class TenantResources {
  private readonly options: TenantResourcesOptions;
  private readonly creations: Creations;

  constructor(options: TenantResourcesOptions) {
    this.options = options;
    this.creations = new Creations(options);
  }

  /**
   * Creates the Tenant resource and applies it with its first administrator, both or neither (Creations.make); the
   * operator creates the namespace. Returns the result of `read`. Throws ALREADY_EXISTS when the name is or was taken.
   */
  async create<T>(
    request: CreateTenantRequest,
    context: CallContext,
    read: (tx: Transaction) => Promise<T>,
  ): Promise<T> {
    const { tenantId, adminPassword } = request;
    await this.refuseTaken(tenantId);
    const intent: Intent = { tenantId, intentId: newId(), kind, namespace: '', name: tenantId };
    return this.creations.make(context, {
      intent,
      object: resourceOf(kind, metadataOf(intent, tenantId), specOf('Tenant', request)),
      apply: (object, last) => {
        // Only the operator finds out whether a namespace is the tenant's.
        const { namespace: _, ...stated } = object.spec;
        const spec = { ...stated, adminPassword };
        return this.options.applier.apply(create(ObjectMetaSchema, metaOf(tenantId, object)), spec, async (tx) => {
          await last(tx);
          // The operator may have seen the resource before the password existed, and waits.
          await notifyChanged(tx, kind, tenantId, '', tenantId);
        });
      },
      read,
    });
  }

  /**
   * Deletes the tenant. Its resource stays until the data is purged. Throws FAILED_PRECONDITION when another manager
   * owns the resource.
   */
  async remove(tenantId: string, signal: AbortSignal): Promise<void> {
    const { kubernetes, applier } = this.options;
    const object = await kubernetes.get<Manifest>(kind, '', tenantId, signal);
    // Where the resource is managed, it may have been deleted, and the tenant restored.
    const manager = object && !object.metadata.deletionTimestamp && foreignManager(object);
    if (manager) throw failedPrecondition(`the resource is managed by ${manager}: delete it there`);
    await applier.markDeleted(tenantId);
  }

  /**
   * Undoes the deletion of a tenant. Throws FAILED_PRECONDITION when its purge is due or has begun. Kubernetes cannot
   * undo the deletion of a resource: one that was deleted with kubectl keeps its mark, and is kept by its finalizer.
   */
  async restore(tenantId: string, signal: AbortSignal): Promise<void> {
    const { kubernetes, database } = this.options;
    const object = await kubernetes.get<Manifest>(kind, '', tenantId, signal);
    const deleting = object?.metadata.deletionTimestamp ? (object.metadata.uid ?? '') : '';
    const isRestored = await database.system(async (tx) => {
      if (!(await holdDeletion(tx, tenantId))?.deleted_at) return true;
      if (!(await markRestored(tx, tenantId, deleting))) return false;
      // The operator applies the manifest again.
      await notifyChanged(tx, kind, tenantId, '', tenantId);
      return true;
    });
    if (!isRestored) throw failedPrecondition('the data of the tenant is being purged: it cannot be restored');
  }

  /**
   * Returns the Tenant resource that decides on settings of the tenant; undefined if there is none, or if it is deleted and not
   * applied any more.
   */
  async governing(tenantId: string, signal: AbortSignal): Promise<KubernetesObject<Manifest> | undefined> {
    const object = await this.options.kubernetes.get<Manifest>(kind, '', tenantId, signal);
    return object?.metadata.deletionTimestamp ? undefined : object;
  }

  private async refuseTaken(tenantId: string): Promise<void> {
    const tenant = await this.options.database.systemRead((tx) => namespaceOf(tx, tenantId));
    if (tenant?.deleted) throw alreadyExists(`the tenant ${tenantId} was deleted; its id cannot be reused`);
    if (tenant) throw alreadyExists(`the tenant ${tenantId} already exists`);
  }
}

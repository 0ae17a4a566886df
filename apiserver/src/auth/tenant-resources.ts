// Tenants made and removed through the API: the Tenant resource first, then its working copy, both or neither (DECISIONS 11).
import { create } from '@bufbuild/protobuf';
import {
  createdByApi,
  createdByLabel,
  finalizer,
  intentAnnotation,
  type Kind,
  type TenantSpec as Manifest,
} from '@kellet/crds';
import { ObjectMetaSchema, TenantSpecSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { CreateTenantRequest } from '@kellet/proto/es/kellet/v1/auth_pb';
import { isOvertaken } from '../control/applied-versions.ts';
import { refusalError } from '../control/applier.ts';
import { notifyChanged } from '../control/changes.ts';
import { foreignManager } from '../control/field-ownership.ts';
import { releaseDeleted } from '../control/finalizers.ts';
import { metaOf, tenantSpec } from '../control/manifest.ts';
import { refusedByKubernetes } from '../control/resource-writer.ts';
import { sleep, type Clock } from '../platform/clock.ts';
import type { Database } from '../platform/database.ts';
import { alreadyExists, failedPrecondition, unavailable } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { KubernetesError, resourceOf, type KubernetesApi, type KubernetesObject } from '../platform/kubernetes.ts';
import type { Logger } from '../platform/logger.ts';
import type { TenantApplier } from './tenant-applier.ts';
import { tenantManifest } from './tenant-manifest.ts';

const kind: Kind = 'Tenant';
type TenantObject = KubernetesObject<Manifest>;

/** Within this time the Kubernetes API must have taken the resource. */
const deadlineMilliseconds = 10_000;

/** What the writer of Tenant resources works with. */
export interface TenantResourcesOptions {
  readonly database: Database;
  readonly kubernetes: Pick<KubernetesApi, 'create' | 'get' | 'delete' | 'mergePatch'>;
  readonly applier: TenantApplier;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** Writes Tenant resources and applies them in this process. */
export class TenantResources {
  private readonly options: TenantResourcesOptions;

  constructor(options: TenantResourcesOptions) {
    this.options = options;
  }

  /**
   * Makes the Tenant resource and has the tenant taken up, with its first administrator; the operator makes the namespace. A
   * creation that broke off between the two is begun anew. Throws ALREADY_EXISTS when the name is or was taken,
   * INVALID_ARGUMENT when the resource's schema refuses it, and UNAVAILABLE when the Kubernetes API is away.
   */
  async create(request: CreateTenantRequest, signal: AbortSignal): Promise<void> {
    const { applier, database } = this.options;
    const { tenantId } = request;
    const deadline = AbortSignal.any([signal, AbortSignal.timeout(deadlineMilliseconds)]);
    const object = await this.post(tenantId, tenantManifest(request), deadline);
    try {
      const spec = create(TenantSpecSchema, { ...tenantSpec(object.spec), adminPassword: request.adminPassword });
      const { refusal } = await applier.apply(create(ObjectMetaSchema, metaOf(tenantId, object)), spec);
      if (refusal) throw refusalError(refusal);
    } catch (error) {
      // The operator has taken the tenant up, which it can do only where no account waits for the password.
      if (isOvertaken(error)) return;
      await this.withdraw(object);
      throw error;
    }
    // The operator may have found the resource before there was a password, and waits.
    await database.system((tx) => notifyChanged(tx, kind, tenantId, '', tenantId));
  }

  /** Deletes the resource and ends the tenant. Throws FAILED_PRECONDITION when another manager owns the resource. */
  async remove(tenantId: string, signal: AbortSignal): Promise<void> {
    const { kubernetes } = this.options;
    const object = await kubernetes.get<Manifest>(kind, '', tenantId, signal);
    const manager = object && foreignManager(object);
    if (manager) throw failedPrecondition(`the resource is managed by ${manager}: delete it there`);
    if (object) await kubernetes.delete(kind, '', tenantId, object.metadata.uid ?? '', signal);
    const meta = create(ObjectMetaSchema, object ? metaOf(tenantId, object) : { tenantId, name: tenantId });
    const refusal = await this.options.applier.remove(meta, false);
    if (refusal) throw refusalError(refusal);
    if (object) await this.release(object);
  }

  private async post(tenantId: string, spec: Manifest, signal: AbortSignal): Promise<TenantObject> {
    const { kubernetes } = this.options;
    const metadata = {
      name: tenantId,
      labels: { [createdByLabel]: createdByApi },
      finalizers: [finalizer],
      annotations: { [intentAnnotation]: newId() },
    };
    for (;;) {
      await this.refuseTaken(tenantId);
      try {
        return await kubernetes.create(kind, resourceOf(kind, metadata, spec), signal);
      } catch (error) {
        if (!(error instanceof KubernetesError)) throw error;
        if (error.reason !== 'AlreadyExists') throw refusedByKubernetes(error);
      }
      const existing = await kubernetes.get<Manifest>(kind, '', tenantId, signal);
      if (existing && existing.metadata.labels?.[createdByLabel] !== createdByApi) {
        throw alreadyExists(`the tenant ${tenantId} already exists`);
      }
      // Ours, and never taken up: its request died before it could finish.
      if (existing && !existing.metadata.deletionTimestamp && this.isAbandoned(existing)) {
        await this.withdraw(existing);
      }
      if (signal.aborted) throw unavailable('the tenant could not be made in time');
      await sleep(100, signal);
    }
  }

  private async refuseTaken(tenantId: string): Promise<void> {
    const { rows } = await this.options.database.systemRead((tx) =>
      tx.query<{ deleted: boolean }>('SELECT deleted_at IS NOT NULL AS deleted FROM tenants WHERE tenant_id = $1', [
        tenantId,
      ]),
    );
    if (rows[0]?.deleted) throw alreadyExists(`the tenant ${tenantId} was deleted; its id is never given out again`);
    if (rows[0]) throw alreadyExists(`the tenant ${tenantId} already exists`);
  }

  /** Whether nobody can be at work on it any more. */
  private isAbandoned({ metadata }: TenantObject): boolean {
    return this.options.clock.now() - Date.parse(metadata.creationTimestamp ?? '') > deadlineMilliseconds;
  }

  /** Best effort: what stays is begun anew by the next request of this name. */
  private async withdraw(object: TenantObject): Promise<void> {
    const { name, uid = '' } = object.metadata;
    try {
      await this.options.kubernetes.delete(kind, '', name, uid);
      await this.release(object);
    } catch (error) {
      this.options.logger.warn(
        { err: error, tenant: name },
        'the resource of a tenant that was not made stays for now',
      );
    }
  }

  private release({ metadata: { name, uid } }: TenantObject): Promise<void> {
    const { kubernetes, logger } = this.options;
    return releaseDeleted(kubernetes, logger, { kind, namespace: '', name, uid });
  }
}

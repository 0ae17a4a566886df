// Records the version of each custom resource from which its working copy was written, so that an older version never
// overwrites it. The operator may apply a stale copy from its cache shortly after REST has changed the resource. The
// generation cannot detect this, because a change of an annotation does not increment it.
//
// Resource versions of one kind are increasing decimal numbers (guaranteed since Kubernetes 1.35; before that, etcd's
// revision). They decrease when a cluster is restored from a backup, so a recorded version takes precedence for only
// five minutes. By then no stale copy is left: the operator's lease lasts 15 seconds, its calls 30.
import type { Kind } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database/database.ts';
import { checkRoom, countedLimit } from '../platform/database/number-limits.ts';
import { KelletError } from '../platform/errors.ts';
import { takeUpIntent } from './intents.ts';

/** How long the recorded version takes precedence over an older one, as an SQL interval. */
const believedFor = `interval '5 minutes'`;

/** Reports whether an Apply failed because a newer version had been applied. The caller rereads the resource. */
export const isOvertaken = (error: unknown): boolean => error instanceof KelletError && error.code === 'ABORTED';

/**
 * The first step of a transaction that writes a working copy: records the version that is applied, activates the intent
 * of the resource (takeUpIntent), and locks the resource, so that versions are written one at a time. Returns whether
 * this transaction activated an intent. Throws ABORTED (isOvertaken) if a newer version of the resource has been
 * applied or the resource has been deleted. A recreated resource has a different uid and starts again.
 */
export async function takeUp(tx: Transaction, kind: Kind, meta: ObjectMeta): Promise<boolean> {
  const { rowCount } = await tx.query(
    `INSERT INTO applied_versions AS held (tenant_id, kind, namespace, name, uid, resource_version)
     VALUES ($1, $2, $3, $4, $5, $6)
     ON CONFLICT (tenant_id, kind, namespace, name) DO UPDATE
       SET uid = excluded.uid, resource_version = excluded.resource_version, deleted = false, applied_at = now()
       WHERE held.uid <> excluded.uid
          OR (NOT held.deleted AND (held.resource_version > excluded.resource_version) IS NOT TRUE)
          OR held.applied_at < now() - ${believedFor}`,
    versionOf(kind, meta),
  );
  if (rowCount === 0) throw new KelletError('ABORTED', 'a newer version of the resource has been applied');
  return takeUpIntent(tx, meta);
}

/**
 * Records the deletion of a resource before its working copy is removed, so that versions still in flight are not applied.
 * Returns false if a newer resource with this name has been applied: its working copy must be kept.
 */
export async function noteDeletion(tx: Transaction, kind: Kind, meta: ObjectMeta): Promise<boolean> {
  // A working copy without a resource is identified only by its name.
  if (meta.uid === '') return true;
  const { rowCount } = await tx.query(
    `INSERT INTO applied_versions AS held (tenant_id, kind, namespace, name, uid, resource_version, deleted)
     VALUES ($1, $2, $3, $4, $5, $6, true)
     ON CONFLICT (tenant_id, kind, namespace, name) DO UPDATE
       SET uid = excluded.uid, resource_version = excluded.resource_version, deleted = true, applied_at = now()
       WHERE held.uid = excluded.uid
          OR (held.resource_version > excluded.resource_version) IS NOT TRUE
          OR held.applied_at < now() - ${believedFor}`,
    versionOf(kind, meta),
  );
  return rowCount === 1;
}

const limitOf = (kind: Kind, maximum: number, what: string) =>
  countedLimit(
    'tenant',
    `SELECT FROM applied_versions WHERE tenant_id = $1 AND kind = '${kind}' AND NOT deleted
     UNION ALL SELECT FROM resource_intents
     WHERE tenant_id = $1 AND kind = '${kind}' AND state = 'pending' AND deadline > now()`,
    maximum,
    what,
  );

/** Resources of one tenant that can be created through the API, those that were created by manifests included. */
const limits = {
  DeviceProfile: limitOf('DeviceProfile', 500, 'profiles'),
  ProvisioningTemplate: limitOf('ProvisioningTemplate', 1000, 'provisioning templates'),
  OtaPackage: limitOf('OtaPackage', 1000, 'packages'),
  OtaRollout: limitOf('OtaRollout', 10_000, 'rollouts, completed ones included'),
};

/**
 * Throws RESOURCE_EXHAUSTED if the tenant has no room for another resource, counting creations in progress. The creation's
 * intent is to be opened in the same transaction.
 */
export async function checkResourceRoom(tx: Transaction, tenantId: string, kind: Kind): Promise<void> {
  if (kind !== 'Tenant') await checkRoom(tx, [tenantId], limits[kind]);
}

/** Deletes the records of deleted resources of which no version can be in flight any more. */
export async function forgetDeleted(tx: Transaction): Promise<void> {
  await tx.query(`DELETE FROM applied_versions WHERE deleted AND applied_at < now() - ${believedFor}`);
}

const versionOf = (kind: Kind, meta: ObjectMeta): (string | null)[] => [
  meta.tenantId,
  kind,
  meta.namespace,
  meta.name,
  meta.uid,
  /^\d{1,100}$/.test(meta.resourceVersion) ? meta.resourceVersion : null,
];

// Which version of a custom resource its working copy was written from: what is older must not be written over it. The operator
// may apply what its cache still holds a moment after REST has changed the resource, and a change of an annotation raises no
// generation by which one could tell.
//
// Resource versions of one kind are decimal numbers that grow (officially since Kubernetes 1.35; etcd's revision before). They
// become smaller when a cluster is restored from a backup: the newer version is believed for five minutes, no longer. By then
// every copy of before has been forgotten: the operator's lease lasts 15 seconds, its calls 30.
import type { Kind } from '@kellet/crds';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database/database.ts';
import { KelletError } from '../platform/errors.ts';
import { takeUpIntent } from './intents.ts';

/** How long the version that was applied last is believed when an older one comes, as an SQL interval. */
const believedFor = `interval '5 minutes'`;

/** Whether an Apply failed because a newer version of the resource had been applied: read it again and apply what it is now. */
export const isOvertaken = (error: unknown): boolean => error instanceof KelletError && error.code === 'ABORTED';

/**
 * Opens the transaction that writes a working copy: notes the version it is written from, settles the intent behind it
 * (takeUpIntent), and holds the resource so that versions are written one at a time. Returns whether this transaction takes up
 * a creation through REST. Throws ABORTED (isOvertaken) when a newer version of the same resource has been applied or its
 * deletion was heard of; a resource made again counts anew.
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
 * Notes, before the working copy is taken away, that the resource was deleted: what of it is still on its way is applied no
 * more. False when a newer resource of the name has been applied: nothing of this one is left.
 */
export async function noteDeletion(tx: Transaction, kind: Kind, meta: ObjectMeta): Promise<boolean> {
  // A working copy without a resource is told by its name alone.
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

/** Forgets deleted resources of which nothing can be on its way any more. */
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

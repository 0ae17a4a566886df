// Which manager owns which top-level field of a resource's spec, read from metadata.managedFields. A change through REST
// never takes a field from another manager.
import { apiFieldManager, createdByApi, createdByLabel, type ManagedFields, operatorFieldManager } from '@kellet/crds';
import type { KubernetesError } from '@kellet/kubernetes';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';

type Object = KubernetesObject<unknown>;

/** Names of the fields that the entry owns below a path of parents. */
function owned(entry: ManagedFields, ...parents: string[]): string[] {
  let fields: unknown = entry.fieldsV1;
  for (const parent of parents) {
    if (typeof fields !== 'object' || fields === null) return [];
    fields = (fields as Record<string, unknown>)[`f:${parent}`];
  }
  if (typeof fields !== 'object' || fields === null) return [];
  return Object.keys(fields).flatMap((key) => (key.startsWith('f:') ? [key.slice(2)] : []));
}

const entries = (object: Object): readonly ManagedFields[] =>
  (object.metadata.managedFields ?? []).filter((entry) => !entry.subresource);

/** Names of the fields below this path (`spec`, or `metadata`, `annotations`) that we own. */
export function ownedFields(object: Object, ...path: string[]): Set<string> {
  const ours = entries(object).filter((entry) => entry.manager === apiFieldManager);
  return new Set(ours.flatMap((entry) => owned(entry, ...path)));
}

/**
 * A manager other than us and the operator to whom the resource belongs: whoever owns fields of its spec. One that was made
 * through REST belongs to another only when that one applies it; a patch or an edit by hand takes nothing over.
 */
export function foreignManager(object: Object): string | undefined {
  const ours: (string | undefined)[] = [apiFieldManager, operatorFieldManager];
  const isOurs = object.metadata.labels?.[createdByLabel] === createdByApi;
  return entries(object).find(
    (entry) =>
      !ours.includes(entry.manager) &&
      owned(entry, 'spec').length > 0 &&
      (!isOurs || entry.operation === 'Apply' || entry.manager === 'kubectl-client-side-apply'),
  )?.manager;
}

/**
 * The first value at or below this field of the spec that `wanted` leaves out although another manager owns it too: applying
 * `wanted` would keep it. Undefined when there is none.
 */
export function keptByAnother(
  object: Object,
  field: string,
  wanted: unknown,
): { readonly path: string; readonly manager: string } | undefined {
  for (const { manager, fieldsV1 } of entries(object)) {
    if (manager === undefined || manager === apiFieldManager) continue;
    const spec = fieldsV1?.['f:spec'] as Record<string, object> | undefined;
    const fields = spec?.[`f:${field}`];
    const path = fields && leftOut(fields, wanted, `spec.${field}`);
    if (path) return { path, manager };
  }
  return undefined;
}

function leftOut(fields: object, wanted: unknown, path: string): string | undefined {
  if (wanted === undefined) return path;
  for (const [key, below] of Object.entries(fields) as [string, object][]) {
    if (key.startsWith('v:')) {
      const value: unknown = JSON.parse(key.slice(2));
      if (!(wanted as unknown[]).includes(value)) return path;
    } else if (key.startsWith('f:')) {
      const name = key.slice(2);
      const at = /^[A-Za-z_]\w*$/.test(name) ? `${path}.${name}` : `${path}[${JSON.stringify(name)}]`;
      const found = leftOut(below, (wanted as Record<string, unknown>)[name], at);
      if (found) return found;
    }
  }
  return undefined;
}

/**
 * The managedFields with which a resource that we created by POST goes on as one that we apply: server-side apply counts the
 * same manager's `Update` and `Apply` as two owners that conflict. Undefined when nothing has to change.
 */
export function asApplied(object: Object): ManagedFields[] | undefined {
  const all = object.metadata.managedFields ?? [];
  const created = (entry: ManagedFields) =>
    entry.manager === apiFieldManager && entry.operation === 'Update' && !entry.subresource;
  if (!all.some(created) || all.some((entry) => entry.manager === apiFieldManager && entry.operation === 'Apply')) {
    return undefined;
  }
  return all.map((entry) => (created(entry) ? { ...entry, operation: 'Apply' } : entry));
}

/** Which fields belong to which other manager, for the caller whose change met them; undefined for a conflict of versions. */
export function conflictMessage(error: KubernetesError): string | undefined {
  const conflicts = error.causes.flatMap((cause) => {
    const manager = /conflict with "([^"]+)"/.exec(cause.message ?? '')?.[1];
    return cause.reason === 'FieldManagerConflict' && manager
      ? [`${cause.field ?? 'a field'} is managed by ${manager}`]
      : [];
  });
  return conflicts.length > 0 ? conflicts.join('; ') : undefined;
}

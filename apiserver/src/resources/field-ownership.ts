// Which manager owns which top-level field of a resource's spec, read from metadata.managedFields. A change through REST
// never takes a field from another manager.
import { apiFieldManager, createdByApi, createdByLabel, type ManagedFields, operatorFieldManager } from '@kellet/crds';
import type { KubernetesError } from '@kellet/kubernetes';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';

type Object = KubernetesObject<unknown>;

/** Returns the names of the fields that the entry owns below this path. */
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

/** Returns the names of the fields below this path (`spec`, or `metadata`, `annotations`) that we own. */
export function ownedFields(object: Object, ...path: string[]): Set<string> {
  const ours = entries(object).filter((entry) => entry.manager === apiFieldManager);
  return new Set(ours.flatMap((entry) => owned(entry, ...path)));
}

/**
 * Returns the manager to which a resource belongs, if it is neither us nor the operator: one that owns fields of the spec.
 * A resource created through REST belongs to another manager only if that one applies it; patching or editing it does not
 * take it over.
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
 * Returns the first value at or below this field of the spec that `wanted` omits although another manager owns it, or
 * undefined. Applying `wanted` would not remove it.
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
 * Returns the managedFields that turn a resource created with POST into one managed with server-side apply, or undefined
 * if no change is needed. Server-side apply treats `Update` and `Apply` of the same manager as conflicting owners.
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

/** Returns a message that names the conflicting fields and their managers, or undefined for a version conflict. */
export function conflictMessage(error: KubernetesError): string | undefined {
  const conflicts = error.causes.flatMap((cause) => {
    const manager = /conflict with "([^"]+)"/.exec(cause.message ?? '')?.[1];
    return cause.reason === 'FieldManagerConflict' && manager
      ? [`${cause.field ?? 'a field'} is managed by ${manager}`]
      : [];
  });
  return conflicts.length > 0 ? conflicts.join('; ') : undefined;
}

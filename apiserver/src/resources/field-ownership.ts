// Which manager owns which field of a resource's spec, read from metadata.managedFields. A change through REST never takes a
// field from another manager.
import { apiFieldManager, createdByApi, createdByLabel, type ManagedFields, operatorFieldManager } from '@kellet/crds';
import type { KubernetesError } from '@kellet/kubernetes';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';

type Object = KubernetesObject<unknown>;

const entries = (object: Object): readonly ManagedFields[] =>
  (object.metadata.managedFields ?? []).filter((entry) => !entry.subresource);

/**
 * Returns the values at this path (`spec`, or `metadata`, `annotations`) that we own: of an object or set that others own
 * too, our part.
 */
export function ownValues(object: Object, values: object = {}, ...path: string[]): Record<string, unknown> {
  const parts = entries(object)
    .filter((entry) => entry.manager === apiFieldManager)
    .flatMap((entry) => fieldsAt(entry, path) ?? []);
  return parts.reduce<Record<string, unknown>>((all, fields) => joined(all, part(fields, values)), {});
}

/** Returns what an entry owns at this path, in the form of fieldsV1, or undefined if it owns nothing there. */
function fieldsAt(entry: ManagedFields, path: readonly string[]): object | undefined {
  let fields: unknown = entry.fieldsV1;
  for (const name of path) {
    if (typeof fields !== 'object' || fields === null) return undefined;
    fields = (fields as Record<string, unknown>)[`f:${name}`];
  }
  return typeof fields === 'object' && fields !== null ? fields : undefined;
}

/** Returns the part of a value that these fields cover. Fields without parts (`{}`) cover it whole. */
function part(fields: object, value: unknown): unknown {
  const keys = Object.keys(fields);
  if (keys.length === 0 || typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    return keys.some((key) => key.startsWith('v:'))
      ? value.filter((item) => `v:${JSON.stringify(item)}` in fields)
      : value;
  }
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, item]) => {
      const below = (fields as Record<string, object | undefined>)[`f:${key}`];
      return below ? [[key, part(below, item)]] : [];
    }),
  );
}

/** Returns the union of two parts of one object. */
function joined(one: Record<string, unknown>, other: unknown): Record<string, unknown> {
  const union = { ...one };
  for (const [key, value] of Object.entries(other as object)) {
    const held = union[key];
    union[key] = isPlain(held) && isPlain(value) ? joined(held, value) : value;
  }
  return union;
}

const isPlain = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const ownsSpec = (entry: ManagedFields): boolean =>
  Object.keys(fieldsAt(entry, ['spec']) ?? {}).some((key) => key.startsWith('f:'));

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
      ownsSpec(entry) &&
      (!isOurs || entry.operation === 'Apply' || entry.manager === 'kubectl-client-side-apply'),
  )?.manager;
}

/**
 * Returns the first value at or below this path of the spec that `wanted` omits although another manager owns it, or
 * undefined. Applying `wanted` would not remove it.
 */
export function keptByAnother(
  object: Object,
  path: readonly string[],
  wanted: unknown,
): { readonly path: string; readonly manager: string } | undefined {
  for (const entry of entries(object)) {
    if (entry.manager === undefined || entry.manager === apiFieldManager) continue;
    const fields = fieldsAt(entry, ['spec', ...path]);
    const kept = fields && leftOut(fields, wanted, ['spec', ...path].join('.'));
    if (kept) return { path: kept, manager: entry.manager };
  }
  return undefined;
}

/**
 * Returns a manager, other than us, that owns this field of the spec, or something in it, or the whole of what it is in;
 * undefined if there is none.
 */
export function otherOwnerOf(object: Object, path: readonly string[]): string | undefined {
  const owns = (entry: ManagedFields): boolean => {
    let fields: object | undefined = fieldsAt(entry, ['spec']);
    for (const name of path) {
      if (!fields) return false;
      if (Object.keys(fields).length === 0) return true;
      fields = (fields as Record<string, object | undefined>)[`f:${name}`];
    }
    return fields !== undefined;
  };
  return entries(object).find((entry) => entry.manager !== apiFieldManager && owns(entry))?.manager;
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

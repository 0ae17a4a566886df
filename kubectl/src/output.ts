// Machine-readable output: JSON, YAML or names.
import { group } from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import { stringify } from 'yaml';

/** Formats a value as indented JSON or as YAML. */
export function formatValue(value: unknown, format: 'json' | 'yaml'): string {
  return format === 'json' ? `${JSON.stringify(value, undefined, 2)}\n` : stringify(value);
}

/** Returns an object without managedFields, as shown by kubectl. */
export function shownObject<T extends KubernetesObject>(object: T): T {
  const { managedFields: _managedFields, ...metadata } = object.metadata;
  return { ...object, metadata };
}

/** Returns a name such as `otarollout.kellet.dev/name`, as printed by `kubectl -o name`. */
export const qualifiedName = (kind: string, name: string): string => `${kind.toLowerCase()}.${group}/${name}`;

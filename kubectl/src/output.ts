// Answers for programs: json, yaml, or the names alone.
import { stringify } from 'yaml';
import type { KubernetesObject } from './cluster.ts';
import { group } from '@kellet/crds';

/** A value as indented JSON or as YAML. */
export function formatValue(value: unknown, format: 'json' | 'yaml'): string {
  return format === 'json' ? `${JSON.stringify(value, undefined, 2)}\n` : stringify(value);
}

/** An object without what only the API server needs, as kubectl shows it. */
export function shownObject<T extends KubernetesObject>(object: T): T {
  const { managedFields: _managedFields, ...metadata } = object.metadata;
  return { ...object, metadata };
}

/** `otarollout.kellet.dev/name`, as `kubectl -o name` writes it. */
export const qualifiedName = (kind: string, name: string): string => `${kind.toLowerCase()}.${group}/${name}`;

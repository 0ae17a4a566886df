// Names, keys and paths of Kubernetes objects.
import type { ObjectMeta } from '@kellet/crds';

/** Any Kubernetes object. */
export interface KubernetesObject {
  apiVersion?: string;
  kind?: string;
  metadata: ObjectMeta;
}

/** An API resource. */
export interface Resource {
  /** Empty for the core group. */
  group: string;
  version: string;
  plural: string;
  kind: string;
  namespaced: boolean;
}

/** Key of an object. */
export interface ObjectKey {
  /** Empty for cluster-scoped objects. */
  namespace: string;
  name: string;
}

/** Formats a key as `namespace/name`, or `/name`. */
export function keyText(key: ObjectKey): string {
  return `${key.namespace}/${key.name}`;
}

/** Parses the result of {@link keyText}. */
export function parseKey(text: string): ObjectKey {
  const at = text.indexOf('/');
  return { namespace: text.slice(0, at), name: text.slice(at + 1) };
}

/** Returns the key of an object. */
export function keyOf(object: KubernetesObject): ObjectKey {
  return { namespace: object.metadata.namespace ?? '', name: object.metadata.name };
}

/** Returns the `apiVersion` of a kind. */
export function apiVersionOf(resource: Resource): string {
  return resource.group === '' ? resource.version : `${resource.group}/${resource.version}`;
}

/** Returns the API path of a collection, or of an object if a name is given. The namespace '' means all. */
export function pathOf(resource: Resource, namespace: string, name?: string): string {
  const root = resource.group === '' ? `/api/${resource.version}` : `/apis/${apiVersionOf(resource)}`;
  const scope = resource.namespaced && namespace !== '' ? `/namespaces/${encodeURIComponent(namespace)}` : '';
  const item = name === undefined ? '' : `/${encodeURIComponent(name)}`;
  return `${root}${scope}/${resource.plural}${item}`;
}

/**
 * Reports whether a resource version is older than another. Resource versions of a resource are increasing decimal
 * numbers; for anything else the result is false.
 */
export function isOlder(version: string | undefined, than: string | undefined): boolean {
  if (!version || !than || !/^\d+$/.test(version) || !/^\d+$/.test(than)) return false;
  return BigInt(version) < BigInt(than);
}

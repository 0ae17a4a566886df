// How a kind of Kubernetes object is named on the wire, and the least that every object has.
import type { ObjectMeta } from '@kellet/crds';

/** Any Kubernetes object. */
export interface KubernetesObject {
  apiVersion?: string;
  kind?: string;
  metadata: ObjectMeta;
}

/** A kind of object and where its API lies. */
export interface Resource {
  /** Empty for the core group. */
  group: string;
  version: string;
  plural: string;
  kind: string;
  namespaced: boolean;
}

/** Names one object. */
export interface ObjectKey {
  /** Empty for a cluster-scoped object. */
  namespace: string;
  name: string;
}

/** Returns the text form of a key, as queues and caches use it: `namespace/name`, or `/name`. */
export function keyText(key: ObjectKey): string {
  return `${key.namespace}/${key.name}`;
}

/** Returns the key that a text form stands for. */
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

/** Returns the API path of a collection, or of one object when a name is given; a namespace of '' means all. */
export function pathOf(resource: Resource, namespace: string, name?: string): string {
  const root = resource.group === '' ? `/api/${resource.version}` : `/apis/${apiVersionOf(resource)}`;
  const scope = resource.namespaced && namespace !== '' ? `/namespaces/${encodeURIComponent(namespace)}` : '';
  const item = name === undefined ? '' : `/${encodeURIComponent(name)}`;
  return `${root}${scope}/${resource.plural}${item}`;
}

/**
 * Whether one version of an object is older than another. Resource versions of one resource are decimal numbers that grow;
 * what is not a number counts as not older.
 */
export function isOlder(version: string | undefined, than: string | undefined): boolean {
  if (!version || !than || !/^\d+$/.test(version) || !/^\d+$/.test(than)) return false;
  return BigInt(version) < BigInt(than);
}

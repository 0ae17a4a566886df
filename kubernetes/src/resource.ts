// Names, keys and paths of Kubernetes objects.
import { apiVersion, type Kind, type ObjectMeta, plurals } from '@kellet/crds';

/** Any Kubernetes object. */
export interface KubernetesObject {
  apiVersion?: string;
  kind?: string;
  metadata: ObjectMeta;
}

/** An API resource. */
export interface Resource {
  /** `<group>/<version>`, or the version alone for the core group. */
  apiVersion: string;
  kind: string;
  plural: string;
  namespaced: boolean;
}

/** Returns the resource of a kind whose plural is formed like those of Kubernetes' own kinds. */
export function resourceFor(apiVersion: string, kind: string, namespaced = true): Resource {
  const plural = `${kind}s`.toLowerCase().replace(/ys$/, 'ies');
  return { apiVersion, kind, plural, namespaced };
}

export const namespaces = resourceFor('v1', 'Namespace', false);
export const pods = resourceFor('v1', 'Pod');
export const secrets = resourceFor('v1', 'Secret');
export const serviceAccounts = resourceFor('v1', 'ServiceAccount');
export const services = resourceFor('v1', 'Service');

/** Resources of Kellet's kinds. */
export const customResources = Object.fromEntries(
  Object.entries(plurals).map(([kind, plural]) => [kind, { apiVersion, kind, plural, namespaced: kind !== 'Tenant' }]),
) as { readonly [K in Kind]: Resource };

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

/** Path of a request. */
export interface Location {
  path: string;
  /** The path with placeholders for namespace and name; the path itself if absent. */
  template?: string;
}

/** Returns the location of a collection, or of an object if a name is given. The namespace '' means all. */
export function locate(resource: Resource, namespace: string, name?: string, subresource?: string): Location {
  const root = `${resource.apiVersion.includes('/') ? '/apis' : '/api'}/${resource.apiVersion}`;
  const pathOf = (scope: string, item: string): string =>
    root +
    (resource.namespaced && namespace !== '' ? `/namespaces/${scope}` : '') +
    `/${resource.plural}` +
    (name === undefined ? '' : `/${item}`) +
    (subresource === undefined ? '' : `/${subresource}`);
  return {
    path: pathOf(encodeURIComponent(namespace), encodeURIComponent(name ?? '')),
    template: pathOf('{namespace}', '{name}'),
  };
}

/**
 * Reports whether a resource version is older than another. Resource versions of a resource are increasing decimal
 * numbers; for anything else the result is false.
 */
export function isOlder(version: string | undefined, than: string | undefined): boolean {
  if (!version || !than || !/^\d+$/.test(version) || !/^\d+$/.test(than)) return false;
  return BigInt(version) < BigInt(than);
}

// Reads collections a page at a time. Objects may be as large as etcd stores, so that a page has as many as its bytes allow.
import type { KubernetesClient, ObjectList, Query } from './client.ts';
import { failureOf } from './errors.ts';
import type { KubernetesObject, Resource } from './resource.ts';

/** Objects and bytes of a page, at most. A single object has at most some 3 MiB as JSON. */
export const defaultPage = { objects: 500, bytes: 4 * 1024 * 1024 } as const;

/** What is listed. */
export interface ListOptions {
  /** '' means all. */
  readonly namespace: string;
  readonly query?: Query;
  readonly signal?: AbortSignal | undefined;
  /** Objects of a page, at most; undefined: all that its bytes allow. */
  readonly objects: number | undefined;
  /** Bytes of a page (default 4 MiB): a larger one is not read to its end, and requested again with half as many objects. */
  readonly bytes?: number | undefined;
}

/** Yields the pages of a collection. Throws KubernetesError. */
export async function* listPages<T extends KubernetesObject>(
  client: Pick<KubernetesClient, 'list'>,
  resource: Resource,
  { namespace, query = {}, signal, objects, bytes = defaultPage.bytes }: ListOptions,
): AsyncGenerator<ObjectList<T>> {
  let next: string | undefined;
  let limit = objects;
  for (;;) {
    const page = await client
      .list<T>(resource, namespace, { ...query, limit, continue: next }, signal, bytes)
      .catch((error: unknown) => {
        if (failureOf(error) === 'tooLarge' && limit !== 1) return undefined;
        throw error;
      });
    if (!page) {
      limit = Math.ceil((limit ?? 2 * defaultPage.objects) / 2);
      continue;
    }
    yield page;
    next = page.metadata.continue || undefined;
    if (next === undefined) return;
    limit &&= Math.min(objects ?? defaultPage.objects, Math.ceil(limit * 1.25));
  }
}

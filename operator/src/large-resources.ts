// Large custom resources, of which the cache keeps a part: those of one namespace could take more memory than the operator has.
import { createHash } from 'node:crypto';
import { finalizer, type ObjectMeta } from '@kellet/crds';
import { type CustomResource, isBeingDeleted } from './resources.ts';

/** Bytes up to which all of a resource is kept. */
const wholeBytes = 16 * 1024;

/** Bytes that a property takes beside its JSON. */
const propertyBytes = 64;

/** Bytes of the fields of a larger one that are kept: its references, type and phase are small. */
const fieldBytes = 1024;

/** Bytes of a status that is kept whole. */
const statusBytes = 16 * 1024;

/** Bytes of a resource as JSON beyond which few are applied at a time: as an object it takes about ten times as many. */
const hugeBytes = 64 * 1024;

/** Resources of which a part is kept, and the bytes of the whole. */
const parts = new WeakMap<object, number>();

/** Reports whether this is a part of a resource, which has to be read before it is applied. */
export const isPart = (object: object): boolean => parts.has(object);

/** Reports whether the resource of this part is so large that it is to be applied in turns (`Environment.turns`). */
export const isHuge = (part: object): boolean => (parts.get(part) ?? 0) > hugeBytes;

/** Returns what the cache keeps of a resource: all of a usual one. Tenants, which no tenant can write, are kept as they are. */
export function keptPart<T extends CustomResource>(object: T): T {
  if (object.kind === 'Tenant') return object;
  const text = JSON.stringify(object);
  const bytes = Buffer.byteLength(text);
  if (bytes + propertyBytes * (text.split('":').length - 1) <= wholeBytes) return object;
  const { apiVersion, kind, metadata, spec, status } = object;
  const part = {
    ...{ apiVersion, kind, metadata: partOfMetadata(metadata), spec: smallFields(spec) },
    status: bytesOf(status) <= statusBytes ? status : smallFields(status ?? {}),
  } as T;
  parts.set(part, bytes);
  return part;
}

function partOfMetadata(metadata: ObjectMeta): ObjectMeta {
  const { name, namespace, uid, resourceVersion, generation, creationTimestamp, deletionTimestamp } = metadata;
  const { labels, annotations, finalizers } = metadata;
  const digest = createHash('sha256')
    .update(JSON.stringify([labels, annotations]))
    .digest('base64');
  return {
    ...{ name, resourceVersion, generation, uid, creationTimestamp },
    ...(namespace !== undefined && { namespace }),
    ...(isBeingDeleted({ metadata }) && { deletionTimestamp }),
    ...(finalizers?.includes(finalizer) && { finalizers: [finalizer] }),
    // Tells whether they have changed.
    annotations: { digest },
  };
}

const smallFields = (fields: object): object =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => bytesOf(value) <= fieldBytes));

const bytesOf = (value: unknown): number => (value === undefined ? 0 : Buffer.byteLength(JSON.stringify(value)));

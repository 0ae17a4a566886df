// Finds changes of a tenant's settings that another manager of its resource has decided on. Pure.
import { isDeepStrictEqual } from 'node:util';
import { create } from '@bufbuild/protobuf';
import type { TenantSpec } from '@kellet/crds';
import { CreateTenantRequestSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { inContract } from '../control/field-names.ts';
import { specOf } from '../control/manifest-mapping.ts';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import { otherOwnerOf } from '../resources/field-ownership.ts';
import { type TenantRow, type TenantSettings, toTenant } from './tenant-store.ts';

/**
 * Returns a message that names a setting that would change although another manager owns it in the tenant's resource, and
 * the manager; undefined if there is none. A change to what the resource says is not one.
 */
export function managedElsewhere(
  resource: KubernetesObject<TenantSpec>,
  before: TenantRow,
  changes: Partial<TenantSettings>,
): string | undefined {
  const wanted = specOfRow({ ...before, ...changes } as TenantRow);
  for (const path of changedPaths(specOfRow(before), wanted)) {
    if (isSame(valueAt(resource.spec, path), valueAt(wanted, path))) continue;
    const manager = otherOwnerOf(resource, path);
    if (manager !== undefined) {
      return inContract('Tenant', `spec.${path.join('.')} is managed by ${manager}: change it there`);
    }
  }
  return undefined;
}

/** Returns a tenant's settings as its manifest would have them. */
function specOfRow(row: TenantRow): unknown {
  const { name, rateLimitPerMinute, quotas, ipAllowlist, mfaRequired, defaults, trustedSigningKeys, ...others } =
    toTenant(row);
  const { retentionDays, batchSeconds } = others;
  return specOf(
    'Tenant',
    create(CreateTenantRequestSchema, {
      ...{ name, rateLimitPerMinute, quotas, ipAllowlist, mfaRequired, defaults, trustedSigningKeys },
      ...{ retentionDays, batchSeconds },
    }),
  );
}

/** Returns the paths of the values that differ, as deep as there are objects. */
function changedPaths(before: unknown, after: unknown, path: readonly string[] = []): string[][] {
  if (isSame(before, after)) return [];
  if (![before, after].every((value) => value === undefined || isObject(value))) return [[...path]];
  const [one = {}, other = {}] = [before as Fields | undefined, after as Fields | undefined];
  const names = new Set([...Object.keys(one), ...Object.keys(other)]);
  return [...names].flatMap((name) => changedPaths(one[name], other[name], [...path, name]));
}

type Fields = Readonly<Record<string, unknown>>;

const isObject = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

const valueAt = (spec: unknown, path: readonly string[]): unknown =>
  path.reduce<unknown>(
    (value, name) => (isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined),
    spec,
  );

/** A manifest may state a default, which the message does not show. */
const isSame = (one: unknown, other: unknown): boolean =>
  (isUnset(one) && isUnset(other)) || isDeepStrictEqual(one, other);

const isUnset = (value: unknown): boolean =>
  [undefined, null, false, 0, ''].includes(value as null) ||
  (Array.isArray(value) && value.length === 0) ||
  (isObject(value) && Object.keys(value).length === 0);

// The filters of the device list as SQL conditions.
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import { invalidArgument } from '../../platform/errors.ts';
import { inDeviceGroups } from '../../platform/visibility.ts';
import type { TenantDefaultFacts } from '../../policies/inheritance.ts';

/** Filters of a list of devices; empty texts and lists match everything. */
export interface DeviceFilters {
  readonly status: 'online' | 'offline' | undefined;
  readonly credentialType: CredentialType | undefined;
  readonly profileId: string;
  readonly groupId: string;
  /** The customer's id, if the list is limited to one. */
  readonly customerId: string | undefined;
  /** The device groups to which the caller is limited; null if it is not. */
  readonly visibleGroupIds: readonly string[] | null;
  /** Tags that must all match, as `key=value`. */
  readonly tags: readonly string[];
  readonly hardwareId: string;
  /** Part of the name or hardware id, ignoring case. */
  readonly text: string;
}

/** Filters by tag that are conditions of their own, which are cheaper for small tags. */
const fewTags = 1;

/** SQL conditions on `devices d` and their values. */
export interface Conditions {
  readonly conditions: string[];
  readonly values: unknown[];
}

/** Splits `key=value` at the first `=`. Throws INVALID_ARGUMENT if there is none. */
export function parseTag(text: string): { key: string; value: string } {
  const at = text.indexOf('=');
  if (at < 1) throw invalidArgument(`tag: ${JSON.stringify(text)} must be key=value`);
  return { key: text.slice(0, at), value: text.slice(at + 1) };
}

/** Returns the pattern of texts that contain this one. */
export const patternOf = (text: string): string => `%${text.replace(/[\\%_]/g, '\\$&')}%`;

/**
 * Returns conditions on the table `devices d`, with values numbered from `$first`. A tag matches when the device has it
 * itself or inherits it: from its profile, or from the tenant if it has no profile. `inheriting` are the ids of the profiles that
 * have each tag as a default.
 */
export function filterConditions(
  filters: DeviceFilters,
  inheriting: readonly (readonly string[])[],
  tenant: TenantDefaultFacts,
  first: number,
): Conditions {
  const conditions: string[] = [];
  const values: unknown[] = [];
  const value = (given: unknown) => `$${first + values.push(given) - 1}`;
  if (filters.status) conditions.push(`d.status = ${value(filters.status)}`);
  // Not a value, so that the partial index is used.
  if (filters.credentialType) conditions.push(`d.credential_type = '${filters.credentialType}'`);
  if (filters.customerId) conditions.push(`d.customer_id = ${value(filters.customerId)}`);
  if (filters.visibleGroupIds !== null) conditions.push(inDeviceGroups('d', value(filters.visibleGroupIds)));
  if (filters.profileId) conditions.push(`d.profile_id = ${value(filters.profileId)}`);
  if (filters.hardwareId) conditions.push(`d.hardware_id = ${value(filters.hardwareId)}`);
  if (filters.groupId) {
    conditions.push(`EXISTS (SELECT FROM device_group_members m
      WHERE m.tenant_id = d.tenant_id AND m.device_id = d.device_id AND m.group_id = ${value(filters.groupId)})`);
  }
  const ofTags = filters.tags.map((tag, place) => {
    const { key, value: wanted } = parseTag(tag);
    const name = value(key);
    const ofProfile = value(inheriting[place] ?? []);
    const ofTenant = value(tenant.tags[key] === wanted);
    return `(d.tags->>${name} = ${value(wanted)} OR (NOT d.tags ? ${name}
      AND (d.profile_id = ANY(${ofProfile}::uuid[]) OR (d.profile_id IS NULL AND ${ofTenant}))))`;
  });
  if (ofTags.length <= fewTags) conditions.push(...ofTags);
  // Large tags are unpacked once, not for each condition.
  else
    conditions.push(`EXISTS (SELECT FROM (SELECT d.tags || '{}' AS tags, d.profile_id OFFSET 0) AS d
      WHERE ${ofTags.join(' AND ')})`);
  if (filters.text) {
    const pattern = value(patternOf(filters.text));
    conditions.push(`(d.name ILIKE ${pattern} OR d.hardware_id ILIKE ${pattern})`);
  }
  return { conditions, values };
}

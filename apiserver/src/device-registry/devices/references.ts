// Checks what devices refer to, and holds it until the transaction ends.
import type { Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { holdGroups, maximumGroupsOfDevice, tooManyGroups } from './group-members.ts';
import type { RegistryParts } from './registry-parts.ts';

/** Locks a profile (empty: none) against deletion; before the rows of devices (fleet-changes.ts). Throws NOT_FOUND. */
export async function holdProfile(
  { profiles }: Pick<RegistryParts, 'profiles'>,
  tx: Transaction,
  tenantId: string,
  profileId: string,
  field = 'profile_id',
): Promise<void> {
  if (profileId === '') return;
  const held = await profiles.hold(tx, tenantId, [profileId]);
  if (held.size === 0) throw notFound(field);
}

/**
 * Locks the groups that a device is to have and returns those without a query. Throws NOT_FOUND,
 * FAILED_PRECONDITION for a group with a query that the device is not in, and RESOURCE_EXHAUSTED for too many groups.
 */
export async function holdGroupsOf(
  tx: Transaction,
  tenantId: string,
  groupIds: readonly string[],
  current: readonly string[] = [],
): Promise<string[]> {
  const malformed = groupIds.find((id) => !isId(id));
  if (malformed !== undefined) throw notFound(`group_ids: ${JSON.stringify(malformed)}`);
  const kinds = await holdGroups(tx, tenantId, groupIds);
  const unknown = groupIds.find((id) => !kinds.has(id.toLowerCase()));
  if (unknown !== undefined) throw notFound(`group_ids: ${JSON.stringify(unknown)}`);
  const ids = groupIds.map((id) => id.toLowerCase());
  const added = ids.find((id) => kinds.get(id) === true && !current.includes(id));
  if (added !== undefined) {
    throw failedPrecondition(`group_ids: ${JSON.stringify(added)} has a query, so no device can be added to it`);
  }
  const byHand = ids.filter((id) => kinds.get(id) === false);
  const before = new Set(current);
  if (new Set(byHand).size > maximumGroupsOfDevice && byHand.some((id) => !before.has(id))) throw tooManyGroups();
  return byHand;
}

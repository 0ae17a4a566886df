// Selects devices by the filters of the device list, for every call that has them.
import { Credential_TypeSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { Device_StatusSchema, type ListDevicesRequest } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { invalidArgument, notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import { textField } from '../../platform/requests/fields.ts';
import { type Visibility, visibleGroups } from '../../platform/visibility.ts';
import type { ProfileReader } from '../../policies/profile-reader.ts';
import { noDefaults, tenantDefaults } from '../../policies/tenant-reader.ts';
import { checkCustomer, customerFilter } from '../entities/customers.ts';
import { type Conditions, type DeviceFilters, filterConditions, parseTag } from './device-filters.ts';
import { searchDevices } from './device-search.ts';
import { unknownGroups } from './group-members.ts';

/** The filters as fields of a request. */
export type FilterFields = Pick<
  ListDevicesRequest,
  'status' | 'profileId' | 'groupId' | 'tag' | 'hardwareId' | 'q' | 'customerId'
> &
  Partial<Pick<ListDevicesRequest, 'credentialType'>>;

/**
 * Returns the filters of a request by a caller who sees that much of the tenant. Throws INVALID_ARGUMENT, and NOT_FOUND
 * for a group that the caller may not know.
 */
export function filtersOf(fields: FilterFields, visibility: Visibility): DeviceFilters {
  if (fields.groupId !== '' && visibleGroups([fields.groupId.toLowerCase()], visibility).length === 0) {
    throw notFound(`group_id: ${JSON.stringify(fields.groupId)}`);
  }
  const status = enumFilter<'online' | 'offline'>('status', Device_StatusSchema, fields.status);
  if (fields.tag.length > 16) throw invalidArgument('tag may be given at most 16 times');
  for (const tag of fields.tag) parseTag(textField('tag', tag, { maximum: 1200 }));
  return {
    status,
    credentialType: enumFilter<CredentialType>('credential_type', Credential_TypeSchema, fields.credentialType),
    profileId: textField('profile_id', fields.profileId, { maximum: 64 }),
    groupId: textField('group_id', fields.groupId, { maximum: 64 }),
    customerId: customerFilter(fields.customerId, visibility.customerId),
    visibleGroupIds: visibility.deviceGroupIds,
    tags: fields.tag,
    hardwareId: textField('hardware_id', fields.hardwareId, { maximum: 256 }),
    text: textField('q', fields.q, { maximum: 256 }),
  };
}

/** The devices that match filters. */
export interface Selection {
  /**
   * Returns the conditions, with values from `$first`; devices up to `after` need not fulfil them. Throws NOT_FOUND if
   * the filters name something that does not exist.
   */
  where(tx: Transaction, first: number, after?: string): Promise<Conditions>;
}

/** Checks the profile of the filters and reads the profiles that tags are inherited from. */
export async function selectDevices(
  profiles: ProfileReader,
  tenantId: string,
  filters: DeviceFilters,
  { isLimited = false } = {},
): Promise<Selection> {
  // Limited users cannot tell which profiles exist.
  if (filters.profileId !== '' && !isLimited) {
    if (!isId(filters.profileId) || !(await profiles.get(tenantId, filters.profileId))) throw notFound('profile_id');
  }
  const inheritable = filters.tags.length > 0 ? await profiles.list(tenantId) : [];
  return {
    where: async (tx, first, after) => {
      const [tenant = noDefaults, , , found] = await Promise.all([
        filters.tags.length > 0 ? tenantDefaults(tx, tenantId) : undefined,
        checkGroup(tx, tenantId, filters.groupId),
        !isLimited && checkCustomer(tx, tenantId, filters.customerId ?? '', ''),
        searchDevices(tx, tenantId, filters.text, after),
      ]);
      const rest = filterConditions(found ? { ...filters, text: '' } : filters, inheritable, tenant, first);
      if (!found) return rest;
      return {
        conditions: [...rest.conditions, `d.device_id = ANY($${first + rest.values.length}::uuid[])`],
        values: [...rest.values, found.filter((id) => id > (after ?? ''))],
      };
    },
  };
}

async function checkGroup(tx: Transaction, tenantId: string, groupId: string): Promise<void> {
  if (groupId === '') return;
  if (!isId(groupId) || (await unknownGroups(tx, tenantId, [groupId], '')).length > 0) {
    throw notFound(`group_id: ${JSON.stringify(groupId)}`);
  }
}

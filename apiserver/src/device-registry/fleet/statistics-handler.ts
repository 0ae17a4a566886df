// The handler of `devices/statistics`.
import type { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { countBy } from '../devices/device-counts.ts';
import { unknownGroups } from '../devices/group-members.ts';
import type { RegistryParts } from '../devices/registry-parts.ts';

/** The handler. */
export function statisticsHandler({
  database,
  profiles,
}: RegistryParts): Pick<Required<Implementation<typeof DeviceRegistryService>>, 'getDeviceStatistics'> {
  return {
    getDeviceStatistics: async (request, { tenantId }) => {
      const profileId = request.profileId || undefined;
      const groupId = request.groupId || undefined;
      if (profileId !== undefined && (!isId(profileId) || !(await profiles.get(tenantId, profileId)))) {
        throw notFound('profile_id');
      }
      const { online, offline, firmwareVersions } = await database.read(tenantId, async (tx) => {
        const isKnown =
          groupId === undefined || (isId(groupId) && !(await unknownGroups(tx, tenantId, [groupId], '')).length);
        if (!isKnown) throw notFound('group_id');
        return countBy(tx, tenantId, { profileId, groupId });
      });
      return { total: online + offline, online, offline, firmwareVersions: [...firmwareVersions] };
    },
  };
}

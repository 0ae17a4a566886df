// The handler of `devices/export`: the device list as a file, read page by page as fast as the client reads the file.
import { create } from '@bufbuild/protobuf';
import { timestampDate } from '@bufbuild/protobuf/wkt';
import {
  type Device,
  Device_Status,
  type DeviceRegistryService,
  DeviceSchema,
  ExportDevicesRequest_FormatSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { KelletError } from '../../platform/errors.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { isLimited, visibilityOf } from '../../platform/visibility.ts';
import type { ShownProfile } from '../../policies/profile-reader.ts';
import { deviceMessages } from '../devices/device-messages.ts';
import { filtersOf, selectDevices } from '../devices/device-selection.ts';
import type { RegistryParts } from '../devices/registry-parts.ts';
import { type ExportedDevice, fileFormats } from './device-file.ts';
import { fileMilliseconds, filesOfTenant } from './file-slots.ts';

/** Devices read at once: some megabytes at most. */
const pageSize = 200;

/** The handler. */
export function exportHandler(
  parts: RegistryParts,
): Pick<Required<Implementation<typeof DeviceRegistryService>>, 'exportDevices'> {
  const { database, paging, profiles } = parts;
  const slots = filesOfTenant('exports');
  const { gatherPage, view } = deviceMessages(parts);
  return {
    async *exportDevices(request, context) {
      const { tenantId, signal } = context;
      const visibility = visibilityOf(context.caller, 'devices:read');
      const name = enumFilter<keyof typeof fileFormats>('format', ExportDevicesRequest_FormatSchema, request.format);
      const format = fileFormats[name ?? 'csv'];
      const filters = filtersOf(request, visibility);
      const selection = await selectDevices(profiles, tenantId, filters, { isLimited: isLimited(visibility) });
      // Of a page only the text is kept while the client reads it.
      const pageAfter = async (after: string | undefined): Promise<{ text: string; last: string | undefined }> => {
        const page = { size: pageSize, after };
        // Without groups with a query: an import could not add devices to them.
        const gathered = await database.read(tenantId, (tx) =>
          gatherPage(tx, tenantId, selection, page, 'without query'),
        );
        if (signal.aborted) throw new KelletError('CANCELLED', 'the client has disconnected');
        const devices = await view(context, gathered);
        const lines = devices.map((device) => format.line(exported(create(DeviceSchema, device), gathered.profiles)));
        return { text: lines.join(''), last: gathered.isCut ? gathered.rows.at(-1)!.device_id : undefined };
      };
      const leave = await slots.acquire(tenantId, { milliseconds: fileMilliseconds });
      try {
        let header = format.header;
        for (let after: string | undefined, isLast = false; !isLast;) {
          const { text, last } = await paging.turns.run(tenantId, pageSize, 0, () => pageAfter(after));
          [after, isLast] = [last, last === undefined];
          // An empty export states its content type too.
          if (header + text !== '' || isLast)
            yield { contentType: format.contentType, data: Buffer.from(header + text) };
          header = '';
        }
      } finally {
        leave();
      }
    },
  };
}

const exported = (device: Device, profiles: ReadonlyMap<string, ShownProfile>): ExportedDevice => ({
  name: device.name,
  hardware_id: device.hardwareId,
  profile_id: device.profileId,
  profile_name: profiles.get(device.profileId)?.name ?? '',
  tags: device.tags,
  metadata: device.metadata ?? {},
  group_ids: device.groupIds,
  device_id: device.deviceId,
  status: device.status === Device_Status.online ? 'online' : 'offline',
  last_seen: device.lastSeen ? timestampDate(device.lastSeen).toISOString() : '',
  firmware_version: device.firmwareVersion,
});

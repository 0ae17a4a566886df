// The handlers of `devices`.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { DeviceEvent_Kind, type DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { refuseLosses } from '../../auth/credentials/refuse-losses.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { notFound, permissionDenied } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { freeJsonField, idField, textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { isLimited, visibilityOf } from '../../platform/visibility.ts';
import { moveOpenAlarms } from '../alarms/alarm-store.ts';
import { checkCustomer } from '../entities/customers.ts';
import { listHistory } from '../history/history-store.ts';
import { credentialFields } from './credential-handlers.ts';
import { credentialTypeField, wantedCredentials } from './credential-type.ts';
import { deleteDevices, prepareDeletion } from './device-deletion.ts';
import { deviceMessages } from './device-messages.ts';
import { filtersOf, selectDevices } from './device-selection.ts';
import { checkTags } from './device-tags.ts';
import { countThatFit } from './device-view.ts';
import {
  changeDevice,
  createDevice,
  type DeviceRow,
  findDevice,
  fleetFacts,
  notifyDeviceChanged,
  setCertificateExpiry,
} from './devices.ts';
import { groupsOf, setGroups } from './group-members.ts';
import { holdGroupsOf, holdProfile } from './references.ts';
import type { RegistryParts } from './registry-parts.ts';

const updatable = ['name', 'profile_id', 'tags', 'group_ids', 'customer_id', 'metadata', 'hardware_id'] as const;
/** What limited users may change. */
const updatableByLimited: readonly string[] = ['name', 'tags', 'metadata'] satisfies (typeof updatable)[number][];
/** What decides who reaches a device: its customer, and its groups, of which some follow its tags and those of its profile. */
const reaching = ['customer_id', 'group_ids', 'tags', 'profile_id'] as const satisfies (typeof updatable)[number][];
const maximumMetadataBytes = 16_384;
/** Devices of a page that waits for no turn: each has up to 32 KiB of tags and metadata. */
const smallPage = 10;

/** The handlers. */
export function deviceHandlers(parts: RegistryParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, profiles, membership, queryGroups, credentials } = parts;

  /**
   * Runs a transaction. Changes may lock the rows of several devices, so one that conflicts with another is retried.
   */
  const transaction = retriedTransactions(database);

  const { gather, gatherPage, view, viewOne } = deviceMessages(parts);

  /** Returns the groups of a device once those with a query follow what has changed. */
  const followedGroups = async (tx: Transaction, tenantId: string, deviceId: string): Promise<Set<string>> => {
    await queryGroups.follow(tx, tenantId, [deviceId]);
    return new Set((await groupsOf(tx, tenantId, [deviceId])).get(deviceId));
  };

  return {
    createDevice: async (request, context) => {
      const { tenantId, caller } = context;
      const hardwareId = textField('hardware_id', request.hardwareId, { minimum: 1, maximum: 256 });
      const name = textField('name', request.name, { maximum: 256 }) || hardwareId;
      checkTags(request.tags);
      checkMetadata(request.metadata);
      const credentialType = credentialTypeField(request.credentialType);
      const device = { tenantId, deviceId: newId(), name, hardwareId, profileId: request.profileId } as const;
      const wanted = await wantedCredentials(credentialType, request.csr);
      const { gathered, issued } = await transaction(tenantId, async (tx) => {
        await holdProfile(parts, tx, tenantId, request.profileId);
        await checkCustomer(tx, tenantId, request.customerId);
        const groupIds = await holdGroupsOf(tx, tenantId, request.groupIds);
        const row = await createDevice(tx, {
          ...device,
          customerId: request.customerId,
          groupIds,
          credentialType,
          tags: request.tags,
          metadata: request.metadata,
        });
        const [issued] = await Promise.all([
          credentials.issue(tx, device, wanted),
          membership.devicesChanged(tx, tenantId, [{ after: fleetFacts(row) }]),
        ]);
        await queryGroups.follow(tx, tenantId, [row.device_id]);
        // The call may have waited for the quota, or a rollout of the profile.
        await refuseLosses(tx, caller);
        const { certificateExpiresAt = null } = issued;
        await setCertificateExpiry(tx, tenantId, row.device_id, issued.certificateExpiresAt);
        const created = { ...row, certificate_expires_at: certificateExpiresAt };
        return { gathered: await gather(tx, tenantId, [created]), issued };
      });
      return { device: await viewOne(context, gathered), ...credentialFields(issued) };
    },

    getDevice: async (request, context) => {
      const { tenantId } = context;
      const deviceId = idField('device', request.deviceId);
      const gathered = await database.read(tenantId, async (tx) =>
        gather(tx, tenantId, [found(await findDevice(tx, tenantId, deviceId))]),
      );
      return viewOne(context, gathered);
    },

    listDevices: async (request, context) => {
      const { tenantId } = context;
      const visibility = visibilityOf(context.caller, 'devices:read');
      const filters = filtersOf(request, visibility);
      const scope = [tenantId, 'devices', filters];
      const page = paging.open<string>(request, scope);
      const selection = await selectDevices(profiles, tenantId, filters, { isLimited: isLimited(visibility) });
      return paging.turns.run(tenantId, page.size, smallPage, async () => {
        const gathered = await database.read(tenantId, (tx) => gatherPage(tx, tenantId, selection, page));
        const devices = await view(context, gathered);
        const fitting = countThatFit(devices);
        const rows = gathered.rows.slice(0, fitting);
        const isCut = gathered.isCut || fitting < devices.length;
        const closed = paging.close(rows, page, scope, (row) => row.device_id, isCut);
        return { devices: devices.slice(0, closed.rows.length), nextPageToken: closed.nextPageToken };
      });
    },

    updateDevice: async (request, context) => {
      const { tenantId } = context;
      const deviceId = idField('device', request.deviceId);
      const fields = updatedFields(request.updateMask, updatable);
      const reserved = [...fields].find((field) => !updatableByLimited.includes(field));
      const isByLimited = isLimited(visibilityOf(context.caller, 'devices:write'));
      if (reserved !== undefined && isByLimited) {
        throw permissionDenied(`a user who is limited to some devices may not change ${reserved}`);
      }
      const name = textField('name', request.name ?? '', { minimum: fields.has('name') ? 1 : 0, maximum: 256 });
      const hardwareId = textField('hardware_id', request.hardwareId ?? '', {
        minimum: fields.has('hardware_id') ? 1 : 0,
        maximum: 256,
      });
      const profileId = request.profileId ?? '';
      if (fields.has('tags')) checkTags(request.tags);
      if (fields.has('metadata')) checkMetadata(request.metadata);
      const changes = new Map<string, unknown>();
      if (fields.has('name')) changes.set('name', name);
      if (fields.has('hardware_id')) changes.set('hardware_id', hardwareId);
      if (fields.has('profile_id')) changes.set('profile_id', profileId || null);
      if (fields.has('customer_id')) changes.set('customer_id', request.customerId || null);
      if (fields.has('tags')) changes.set('tags', JSON.stringify(request.tags));
      if (fields.has('metadata')) changes.set('metadata', request.metadata ? JSON.stringify(request.metadata) : null);
      const gathered = await transaction(tenantId, async (tx) => {
        if (fields.has('profile_id')) await holdProfile(parts, tx, tenantId, profileId);
        if (fields.has('customer_id')) await checkCustomer(tx, tenantId, request.customerId ?? '');
        const before = found(await findDevice(tx, tenantId, deviceId, 'FOR UPDATE'));
        if (fields.size === 0) return gather(tx, tenantId, [before]);
        const groupsBefore = isByLimited && (await followedGroups(tx, tenantId, deviceId));
        if (fields.has('group_ids')) {
          const current = (await groupsOf(tx, tenantId, [deviceId])).get(deviceId);
          await setGroups(tx, tenantId, deviceId, await holdGroupsOf(tx, tenantId, request.groupIds, current));
        }
        const row = found(await changeDevice(tx, tenantId, deviceId, changes));
        if (row.customer_id !== before.customer_id) await moveOpenAlarms(tx, tenantId, deviceId, row.customer_id);
        await Promise.all([
          notifyDeviceChanged(tx, tenantId, deviceId),
          membership.devicesChanged(tx, tenantId, [{ before: fleetFacts(before), after: fleetFacts(row) }]),
        ]);
        await queryGroups.follow(tx, tenantId, [deviceId]);
        // Which device is in which group decides who reaches it.
        if (groupsBefore && !isDeepStrictEqual(groupsBefore, await followedGroups(tx, tenantId, deviceId))) {
          throw permissionDenied('a user who is limited to some devices may not move devices between device groups');
        }
        // The call may have waited for the device.
        if (reaching.some((field) => fields.has(field))) await refuseLosses(tx, context.caller);
        return gather(tx, tenantId, [row]);
      });
      return viewOne(context, gathered);
    },

    deleteDevice: async (request, { tenantId }) => {
      const deviceId = idField('device', request.deviceId);
      await prepareDeletion(tenantId, [deviceId], parts);
      await transaction(tenantId, async (tx) => {
        if ((await deleteDevices(tx, tenantId, [deviceId], parts)) === 0) throw notFound('device');
      });
      return {};
    },

    getDeviceHistory: async (request, { tenantId }) => {
      const deviceId = idField('device', request.deviceId);
      const scope = [tenantId, 'device history', deviceId];
      const page = paging.open<string>(request, scope);
      const rows = await database.read(tenantId, async (tx) => {
        found(await findDevice(tx, tenantId, deviceId));
        return listHistory(tx, tenantId, deviceId, page.after, page.size + 1);
      });
      const cut = paging.close(rows, page, scope, ({ position }) => String(position));
      const events = cut.rows.map(({ time, kind, previous, current }) => ({
        time: timestampFromDate(time),
        kind: DeviceEvent_Kind[kind],
        from: previous,
        to: current,
      }));
      return { events, nextPageToken: cut.nextPageToken };
    },
  };
}

function found(row: DeviceRow | undefined): DeviceRow {
  if (!row) throw notFound('device');
  return row;
}

function checkMetadata(metadata: JsonObject | undefined): void {
  if (metadata !== undefined) freeJsonField('metadata', metadata, maximumMetadataBytes);
}

// The handlers of `devices`.
import type { JsonObject, MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { Credential_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  Device_StatusSchema,
  DeviceEvent_Kind,
  type DeviceRegistryService,
  type DeviceSchema,
  type ListDevicesRequest,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { MemoryService } from '@kellet/proto/es/kellet/internal/v1/memory_pb';
import {
  describeDeviceKey,
  mintDeviceKey,
  revokeDeviceKeys,
  rotateDeviceKey,
} from '../auth/credentials/device-keys.ts';
import type { Transaction } from '../platform/database/database.ts';
import { enumFilter } from '../platform/enums.ts';
import { invalidArgument, KelletError, notFound, permissionDenied } from '../platform/errors.ts';
import { freeJsonField, idField, textField, textMapField, updatedFields } from '../platform/fields.ts';
import { isId, newId } from '../platform/ids.ts';
import { retriedTransactions } from '../platform/database/retry-conflicts.ts';
import type { CallContext, Implementation } from '../platform/rpc.ts';
import { isLimited, visibilityOf, type Visibility } from '../platform/visibility.ts';
import { moveOpenAlarms } from './alarm-store.ts';
import { filterConditions, parseTag, type DeviceFilters } from './device-filters.ts';
import { toDevice } from './device-view.ts';
import {
  changeDevice,
  createDevice,
  findDevice,
  fleetFacts,
  listDevices,
  lockFamily,
  markDeleted,
  notifyDeviceChanged,
  type DeviceRow,
} from './devices.ts';
import { checkCustomer, customerFilter } from './entities/customers.ts';
import { deleteViewsOf } from './entities/views.ts';
import { groupsOf, joinGroups, leaveGroups, unknownGroups } from './group-store.ts';
import { listHistory, recordCredential } from './history-store.ts';
import { latestSign } from './liveness.ts';
import type { TenantDefaultFacts } from '../policies/inheritance.ts';
import { noDefaults, tenantDefaults } from '../policies/tenant-reader.ts';
import type { RegistryParts } from './registry-parts.ts';

const updatable = ['name', 'profile_id', 'tags', 'group_ids', 'customer_id', 'metadata', 'hardware_id'] as const;
/** What limited users may change. */
const updatableByLimited: readonly string[] = ['name', 'tags', 'metadata'] satisfies (typeof updatable)[number][];
const maxGraceSeconds = 30 * 86_400;
const maximumMetadataBytes = 16_384;

/** The handlers. */
export function deviceHandlers(parts: RegistryParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, profiles, liveness, membership, peers } = parts;

  /**
   * Runs a transaction. Changes may lock the rows of several devices, so one that conflicts with another is retried.
   */
  const transaction = retriedTransactions(database);

  /** Converts rows to messages. Profiles are read outside the transaction, because that may need another connection. */
  const view = async (
    { tenantId, caller }: CallContext,
    gathered: Gathered,
  ): Promise<MessageInitShape<typeof DeviceSchema>[]> => {
    const profileIds = new Set(gathered.rows.flatMap((row) => row.profile_id ?? []));
    const deviceIds = gathered.rows.map((row) => row.device_id);
    const [profilesFound, answers = []] = await Promise.all([
      Promise.all([...profileIds].map(async (id) => [id, await profiles.get(tenantId, id)] as const)),
      peers?.ask(tenantId, MemoryService.method.recallSigns, { deviceIds }),
    ]);
    const known = new Map(profilesFound);
    const elsewhere = Map.groupBy(
      answers.flatMap(({ signs }) => signs),
      (sign) => sign.deviceId,
    );
    const visibility = visibilityOf(caller, 'devices:read');
    return gathered.rows.map((row) =>
      toDevice(row, {
        groupIds: visibleGroups(gathered.groups.get(row.device_id) ?? [], visibility),
        profile: row.profile_id === null ? undefined : known.get(row.profile_id),
        tenant: gathered.tenant,
        overlay: latestSign([liveness.overlay(tenantId, row.device_id), ...(elsewhere.get(row.device_id) ?? [])]),
      }),
    );
  };
  const viewOne = async (context: CallContext, gathered: Gathered) => (await view(context, gathered))[0]!;

  const checkProfile = async (tenantId: string, profileId: string): Promise<void> => {
    if (profileId === '') return;
    if (!isId(profileId) || !(await profiles.get(tenantId, profileId))) throw notFound('profile_id');
  };
  /** Locks the profile against deletion until the transaction ends; before the rows of devices (membership.ts). */
  const holdProfile = async (tx: Transaction, tenantId: string, profileId: string): Promise<void> => {
    if (profileId === '') return;
    const held = isId(profileId) && (await profiles.getWithin(tx, tenantId, profileId, 'FOR KEY SHARE'));
    if (!held) throw notFound('profile_id');
  };

  return {
    createDevice: async (request, context) => {
      const { tenantId } = context;
      const hardwareId = textField('hardware_id', request.hardwareId, { minimum: 1, maximum: 256 });
      const name = textField('name', request.name, { maximum: 256 }) || hardwareId;
      textMapField('tags', request.tags);
      checkMetadata(request.metadata);
      checkCredentialType(request.credentialType);
      const device = { tenantId, deviceId: newId(), name, hardwareId, profileId: request.profileId } as const;
      const { gathered, apiKey } = await transaction(tenantId, async (tx) => {
        await holdProfile(tx, tenantId, request.profileId);
        await checkCustomer(tx, tenantId, request.customerId);
        await checkGroups(tx, tenantId, request.groupIds);
        const row = await createDevice(tx, {
          ...device,
          customerId: request.customerId,
          groupIds: request.groupIds,
          credentialType: 'api_key',
          tags: request.tags,
          metadata: request.metadata,
        });
        const [key] = await Promise.all([
          mintDeviceKey(tx, tenantId, device.deviceId),
          membership.devicesChanged(tx, tenantId, [{ after: fleetFacts(row) }]),
        ]);
        return { gathered: await gather(tx, tenantId, [row]), apiKey: key };
      });
      return { device: await viewOne(context, gathered), apiKey };
    },

    getDevice: async (request, context) => {
      const { tenantId } = context;
      const deviceId = idField('device', request.deviceId);
      const [row, around] = await database.read(tenantId, (tx) =>
        Promise.all([findDevice(tx, tenantId, deviceId), surroundings(tx, tenantId, [deviceId])]),
      );
      return viewOne(context, { rows: [found(row)], ...around });
    },

    listDevices: async (request, context) => {
      const { tenantId } = context;
      const visibility = visibilityOf(context.caller, 'devices:read');
      const filters = filtersOf(request, visibility);
      const scope = [tenantId, 'devices', filters];
      const page = paging.open<string>(request, scope);
      // Limited users cannot tell which profiles exist.
      if (!isLimited(visibility)) await checkProfile(tenantId, filters.profileId);
      const inheritable = filters.tags.length > 0 ? await profiles.list(tenantId) : [];
      const { gathered, nextPageToken } = await database.read(tenantId, async (tx) => {
        const groupIds = filters.groupId === '' ? [] : [filters.groupId];
        const [tenant = noDefaults] = await Promise.all([
          tenantDefaults(tx, tenantId),
          checkGroups(tx, tenantId, groupIds, { field: 'group_id', lock: '' }),
          !isLimited(visibility) && checkCustomer(tx, tenantId, request.customerId, ''),
        ]);
        const { conditions, values } = filterConditions(filters, inheritable, tenant, 4);
        const rows = await listDevices(tx, tenantId, { conditions, values, after: page.after, limit: page.size + 1 });
        const closed = paging.close(rows, page, scope, (row) => row.device_id);
        const deviceIds = closed.rows.map((row) => row.device_id);
        const groups = await groupsOf(tx, tenantId, deviceIds);
        return { gathered: { rows: closed.rows, groups, tenant }, nextPageToken: closed.nextPageToken };
      });
      return { devices: await view(context, gathered), nextPageToken };
    },

    updateDevice: async (request, context) => {
      const { tenantId } = context;
      const deviceId = idField('device', request.deviceId);
      const fields = updatedFields(request.updateMask, updatable);
      const reserved = [...fields].find((field) => !updatableByLimited.includes(field));
      if (reserved !== undefined && isLimited(visibilityOf(context.caller, 'devices:write'))) {
        throw permissionDenied(`a user who is limited to some devices may not change ${reserved}`);
      }
      const name = textField('name', request.name ?? '', { minimum: fields.has('name') ? 1 : 0, maximum: 256 });
      const hardwareId = textField('hardware_id', request.hardwareId ?? '', {
        minimum: fields.has('hardware_id') ? 1 : 0,
        maximum: 256,
      });
      const profileId = request.profileId ?? '';
      if (fields.has('tags')) textMapField('tags', request.tags);
      if (fields.has('metadata')) checkMetadata(request.metadata);
      const changes = new Map<string, unknown>();
      if (fields.has('name')) changes.set('name', name);
      if (fields.has('hardware_id')) changes.set('hardware_id', hardwareId);
      if (fields.has('profile_id')) changes.set('profile_id', profileId || null);
      if (fields.has('customer_id')) changes.set('customer_id', request.customerId || null);
      if (fields.has('tags')) changes.set('tags', JSON.stringify(request.tags));
      if (fields.has('metadata')) changes.set('metadata', request.metadata ? JSON.stringify(request.metadata) : null);
      const gathered = await transaction(tenantId, async (tx) => {
        if (fields.has('profile_id')) await holdProfile(tx, tenantId, profileId);
        if (fields.has('customer_id')) await checkCustomer(tx, tenantId, request.customerId ?? '');
        const before = found(await findDevice(tx, tenantId, deviceId, 'FOR UPDATE'));
        if (fields.size === 0) return gather(tx, tenantId, [before]);
        if (fields.has('group_ids')) {
          await checkGroups(tx, tenantId, request.groupIds);
          await leaveGroups(tx, tenantId, deviceId);
          await joinGroups(tx, tenantId, deviceId, request.groupIds);
        }
        const row = found(await changeDevice(tx, tenantId, deviceId, changes));
        if (row.customer_id !== before.customer_id) await moveOpenAlarms(tx, tenantId, deviceId, row.customer_id);
        await Promise.all([
          notifyDeviceChanged(tx, tenantId, deviceId),
          membership.devicesChanged(tx, tenantId, [{ before: fleetFacts(before), after: fleetFacts(row) }]),
        ]);
        return gather(tx, tenantId, [row]);
      });
      return viewOne(context, gathered);
    },

    deleteDevice: async (request, { tenantId }) => {
      const deviceId = idField('device', request.deviceId);
      await transaction(tenantId, async (tx) => {
        // Lock the children too, whose rows are written below, in order of their ids.
        const rows = await lockFamily(tx, tenantId, deviceId);
        const before = found(rows.find((row) => row.device_id === deviceId.toLowerCase()));
        const children = rows.flatMap((row) => (row === before ? [] : [row.device_id]));
        await Promise.all([
          markDeleted(tx, tenantId, before.device_id, children),
          revokeDeviceKeys(tx, tenantId, before.device_id),
          leaveGroups(tx, tenantId, before.device_id),
          deleteViewsOf(tx, tenantId, before.device_id),
          ...[before.device_id, ...children].map((id) => notifyDeviceChanged(tx, tenantId, id)),
        ]);
        await membership.devicesChanged(tx, tenantId, [{ before: fleetFacts(before) }]);
      });
      return {};
    },

    rotateDeviceCredentials: async (request, { tenantId }) => {
      const deviceId = idField('device', request.deviceId);
      const graceSeconds = request.graceSeconds ?? 0;
      if (graceSeconds > maxGraceSeconds) {
        throw invalidArgument(`grace_seconds must be at most ${maxGraceSeconds}`);
      }
      return database.tenant(tenantId, async (tx) => {
        found(await findDevice(tx, tenantId, deviceId, 'FOR UPDATE'));
        const previous = await describeDeviceKey(tx, tenantId, deviceId);
        const apiKey = await rotateDeviceKey(tx, tenantId, deviceId, graceSeconds);
        await recordCredential(tx, tenantId, deviceId, previous, await describeDeviceKey(tx, tenantId, deviceId));
        return { deviceId, apiKey };
      });
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

interface Gathered {
  readonly rows: readonly DeviceRow[];
  readonly groups: ReadonlyMap<string, string[]>;
  readonly tenant: TenantDefaultFacts;
}

/** Reads what the messages of devices contain besides their rows. */
async function surroundings(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
): Promise<Omit<Gathered, 'rows'>> {
  const [groups, tenant = noDefaults] = await Promise.all([
    groupsOf(tx, tenantId, deviceIds),
    tenantDefaults(tx, tenantId),
  ]);
  return { groups, tenant };
}

/** Reads everything that the messages of devices contain. */
async function gather(tx: Transaction, tenantId: string, rows: readonly DeviceRow[]): Promise<Gathered> {
  const deviceIds = rows.map((row) => row.device_id);
  return { rows, ...(await surroundings(tx, tenantId, deviceIds)) };
}

/** Returns those of a device's groups that a caller may know: none for users of customers, who share groups. */
function visibleGroups(groupIds: readonly string[], { customerId, deviceGroupIds }: Visibility): string[] {
  if (customerId !== null) return [];
  return groupIds.filter((id) => deviceGroupIds?.includes(id) ?? true);
}

function filtersOf(request: ListDevicesRequest, visibility: Visibility): DeviceFilters {
  if (request.groupId !== '' && visibleGroups([request.groupId.toLowerCase()], visibility).length === 0) {
    throw notFound(`group_id: ${JSON.stringify(request.groupId)}`);
  }
  const status = enumFilter<'online' | 'offline'>('status', Device_StatusSchema, request.status);
  if (request.tag.length > 16) throw invalidArgument('tag may be given at most 16 times');
  for (const tag of request.tag) parseTag(textField('tag', tag, { maximum: 1200 }));
  return {
    status,
    profileId: textField('profile_id', request.profileId, { maximum: 64 }),
    groupId: textField('group_id', request.groupId, { maximum: 64 }),
    customerId: customerFilter(request.customerId, visibility.customerId),
    visibleGroupIds: visibility.deviceGroupIds,
    tags: request.tag,
    hardwareId: textField('hardware_id', request.hardwareId, { maximum: 256 }),
    text: textField('q', request.q, { maximum: 256 }),
  };
}

function found(row: DeviceRow | undefined): DeviceRow {
  if (!row) throw notFound('device');
  return row;
}

async function checkGroups(
  tx: Transaction,
  tenantId: string,
  groupIds: readonly string[],
  { field, lock }: { field: string; lock: '' | 'FOR KEY SHARE' } = { field: 'group_ids', lock: 'FOR KEY SHARE' },
): Promise<void> {
  const malformed = groupIds.filter((id) => !isId(id));
  const unknown = malformed.length > 0 ? malformed : await unknownGroups(tx, tenantId, groupIds, lock);
  if (unknown.length > 0) throw notFound(`${field}: ${JSON.stringify(unknown[0])}`);
}

function checkMetadata(metadata: JsonObject | undefined): void {
  if (metadata !== undefined) freeJsonField('metadata', metadata, maximumMetadataBytes);
}

function checkCredentialType(type: Credential_Type | undefined): void {
  if (type === undefined || type === Credential_Type.api_key) return;
  if (type === Credential_Type.psk || type === Credential_Type.certificate) {
    throw new KelletError('UNIMPLEMENTED', 'credential_type: only api_key is available');
  }
  throw invalidArgument('credential_type must be api_key, psk or certificate');
}

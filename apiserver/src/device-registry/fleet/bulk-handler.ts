// The handler of `devices/bulk`: changes all devices that match a filter, some at a time.
import { create, type JsonValue, toJson } from '@bufbuild/protobuf';
import { ValueSchema } from '@bufbuild/protobuf/wkt';
import {
  type ChangeDevicesRequest,
  ChangeDevicesRequest_ActionSchema,
  DeviceFilterSchema,
  type DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { refuseLosses } from '../../auth/credentials/refuse-losses.ts';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import {
  failedPrecondition,
  halfDone,
  invalidArgument,
  KelletError,
  notFound,
  resourceExhausted,
} from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import { textMapField } from '../../platform/requests/fields.ts';
import type { CallContext, Implementation } from '../../platform/rpc.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import { wholeTenant } from '../../platform/visibility.ts';
import { deleteDevices, prepareDeletion } from '../devices/device-deletion.ts';
import { filtersOf, selectDevices } from '../devices/device-selection.ts';
import { maximumTagBytes, maximumTags, tagBytes } from '../devices/device-tags.ts';
import { countChildrenInOrder, fleetFacts, notifyDeviceChanged } from '../devices/devices.ts';
import { holdGroups, joinGroupsOf } from '../devices/group-members.ts';
import { holdProfile } from '../devices/references.ts';
import type { RegistryParts } from '../devices/registry-parts.ts';
import { lockMatching, matchingIds, type MatchingRow, writeProfiles, writeTags } from './bulk-store.ts';
import { firstFamilies } from './families.ts';

/** Devices of one transaction, or fewer if groups with a query follow them. */
const devicesPerTransaction = 500;

/** Children of gateways that one transaction deletes, if these are several: their rows are locked and changed too. */
const childrenPerTransaction = 5000;

/** Devices of one call. */
const maximumDevices = 100_000;

/** Changes at once, each with the ids of up to {@link maximumDevices}, some megabytes. */
const turnsOfChanges = { total: 4, perOwner: 2, waitingPerOwner: 100 };

/** How long a change waits for its turn. */
const turnMilliseconds = 30_000;

/**
 * Devices that the calls of a tenant name, at once and in a day: twenty times a fleet of 100,000. Each may leave rows that are kept for long,
 * in the history or of deleted devices, which no quota counts. It need not be exact across processes.
 */
const namedDevices = { burst: 2_000_000, perSecond: 2_000_000 / 86_400 };

/** A change, with what it needs besides the devices. */
export type BulkChange =
  | { readonly action: 'set_tags'; readonly tags: ReadonlyMap<string, string | null> }
  | { readonly action: 'set_profile'; readonly profileId: string }
  | { readonly action: 'add_to_group'; readonly groupId: string }
  | { readonly action: 'delete' };

/** The handler. */
export function bulkHandler(
  parts: RegistryParts,
  allowed = namedDevices,
): Pick<Required<Implementation<typeof DeviceRegistryService>>, 'changeDevices'> {
  const { database, profiles } = parts;
  const allowance = new TokenBuckets(parts.clock, allowed);
  const transaction = retriedTransactions(database);
  const turns = new FairSlots({
    ...turnsOfChanges,
    refusal: () =>
      new KelletError('UNAVAILABLE', 'too many devices are being changed: try again', { retryAfterSeconds: 5 }),
  });

  const changeDevices = async (request: ChangeDevicesRequest, { tenantId, caller, signal }: CallContext) => {
    const change = bulkChangeOf(request);
    const { expected } = request;
    if (expected === undefined) throw invalidArgument('expected is required');
    if (expected > maximumDevices) throw invalidArgument(`expected must be at most ${maximumDevices}`);
    const filters = filtersOf(request.filter ?? create(DeviceFilterSchema), wholeTenant);
    const selection = await selectDevices(profiles, tenantId, filters);
    // References are checked before anything is changed, and held by each transaction.
    const { ids, atOnce } = await transaction(tenantId, async (tx) => {
      await holdReferences(parts, tx, tenantId, change);
      return {
        ids: await matchingIds(tx, tenantId, await selection.where(tx, 3), expected + 1),
        atOnce: Math.min(devicesPerTransaction, await parts.queryGroups.devicesAtOnce(tx, tenantId)),
      };
    });
    if (ids.length !== expected) {
      const matched = ids.length > expected ? `more than ${expected}` : ids.length;
      throw failedPrecondition(`the filter matches ${matched} devices, not ${expected} as expected`);
    }
    const wait = allowance.take(tenantId, ids.length);
    if (wait > 0) throw resourceExhausted('too many devices were changed in bulk today', wait);
    let changed = 0;
    let hasBegun = false;
    for (let start = 0; start < ids.length;) {
      if (signal.aborted) throw interrupted(changed);
      let some = ids.slice(start, start + atOnce);
      if (change.action === 'delete') {
        const children = await database.read(tenantId, (tx) =>
          countChildrenInOrder(tx, tenantId, some, childrenPerTransaction),
        );
        some = firstFamilies(some, children, childrenPerTransaction);
      }
      start += some.length;
      try {
        if (change.action === 'delete') await prepareDeletion(tenantId, some, parts, () => (hasBegun = true));
        changed += await transaction(tenantId, async (tx) => {
          await holdReferences(parts, tx, tenantId, change);
          // A device that no longer matches was changed by someone else meanwhile.
          const rows = await lockMatching(tx, tenantId, some, await selection.where(tx, 3));
          // Groups and tags decide who reaches a device, and the call may have waited for it.
          await refuseLosses(tx, caller);
          const count = rows.length === 0 ? 0 : await apply(parts, tx, tenantId, rows, change);
          await parts.queryGroups.follow(tx, tenantId, some);
          return count;
        });
      } catch (error) {
        throw (hasBegun || changed > 0) && error instanceof KelletError ? interrupted(changed, error) : error;
      }
    }
    return { matched: ids.length, changed };
  };

  return {
    changeDevices: (request, context) => {
      const { tenantId, signal } = context;
      return turns.run(tenantId, () => changeDevices(request, context), { milliseconds: turnMilliseconds, signal });
    },
  };
}

/** Returns the error of a change that ends although devices are changed. */
const interrupted = (changed: number, cause?: KelletError): KelletError =>
  halfDone(`${changed} devices are changed${cause ? `; then ${cause.message}` : ''}`, cause);

/** Reads action and value of a request. Throws INVALID_ARGUMENT. */
function bulkChangeOf({ action: given, value: message }: ChangeDevicesRequest): BulkChange {
  const action = enumFilter<BulkChange['action']>('action', ChangeDevicesRequest_ActionSchema, given);
  const value: JsonValue = message?.kind.case === undefined ? null : toJson(ValueSchema, message);
  switch (action) {
    case undefined:
      throw invalidArgument('action is required');
    case 'set_tags':
      return { action, tags: tagsOf(value) };
    case 'set_profile':
      if (typeof value !== 'string') throw invalidArgument('value must be a profile id, or "" for none');
      return { action, profileId: value.toLowerCase() };
    case 'add_to_group':
      if (typeof value !== 'string') throw invalidArgument('value must be a group id');
      return { action, groupId: value.toLowerCase() };
    case 'delete':
      if (value !== null) throw invalidArgument('value must be absent');
      return { action };
  }
}

function tagsOf(value: JsonValue): ReadonlyMap<string, string | null> {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw invalidArgument('value must be an object of tags');
  }
  const tags = new Map<string, string | null>();
  for (const [key, tag] of Object.entries(value)) {
    if (tag !== null && typeof tag !== 'string') throw invalidArgument(`value[${key}] must be a text or null`);
    tags.set(key, tag);
  }
  textMapField('value', Object.fromEntries([...tags].map(([key, tag]) => [key, tag ?? ''])), maximumTags);
  return tags;
}

async function holdReferences(parts: RegistryParts, tx: Transaction, tenantId: string, change: BulkChange) {
  if (change.action === 'set_profile') await holdProfile(parts, tx, tenantId, change.profileId, 'value');
  if (change.action !== 'add_to_group') return;
  const kinds = isId(change.groupId) ? await holdGroups(tx, tenantId, [change.groupId]) : new Map<string, boolean>();
  const hasQuery = kinds.get(change.groupId);
  if (hasQuery === undefined) throw notFound('value');
  if (hasQuery) throw failedPrecondition('value: the group has a query, so no device can be added to it');
}

/** Changes locked devices and returns how many are different. */
async function apply(
  parts: RegistryParts,
  tx: Transaction,
  tenantId: string,
  rows: readonly MatchingRow[],
  change: BulkChange,
): Promise<number> {
  const ids = rows.map((row) => row.device_id);
  switch (change.action) {
    case 'set_tags': {
      const devices = rows.flatMap((row) => {
        const tags = mergedTags(row.tags, change.tags);
        if (tags === undefined) return [];
        if (Object.keys(tags).length > maximumTags) {
          throw failedPrecondition(`device ${row.device_id} would have more than ${maximumTags} tags`);
        }
        if (tagBytes(tags) > maximumTagBytes) {
          throw failedPrecondition(`the tags of device ${row.device_id} would have more than ${maximumTagBytes} bytes`);
        }
        return [{ deviceId: row.device_id, tags: JSON.stringify(tags) }];
      });
      if (devices.length === 0) return 0;
      await writeTags(tx, tenantId, devices);
      await notifyDeviceChanged(tx, tenantId, ...devices.map(({ deviceId }) => deviceId));
      return devices.length;
    }
    case 'set_profile': {
      const before = new Map(rows.map((row) => [row.device_id, row]));
      const moved = ids.filter((id) => (before.get(id)!.profile_id ?? '') !== change.profileId);
      if (moved.length === 0) return 0;
      const after = await writeProfiles(tx, tenantId, moved, change.profileId || null);
      await notifyDeviceChanged(tx, tenantId, ...moved);
      const changes = after.map((row) => ({
        before: fleetFacts(before.get(row.device_id)!),
        after: fleetFacts(row),
      }));
      await parts.membership.devicesChanged(tx, tenantId, changes);
      return moved.length;
    }
    case 'add_to_group': {
      const { groupId } = change;
      return joinGroupsOf(
        tx,
        tenantId,
        ids.map((deviceId) => ({ deviceId, groupId })),
      );
    }
    case 'delete':
      return deleteDevices(tx, tenantId, ids, parts);
  }
}

/** Returns the tags after a change, or undefined if they are the same. */
function mergedTags(
  tags: Readonly<Record<string, string>>,
  change: ReadonlyMap<string, string | null>,
): Record<string, string> | undefined {
  const merged = new Map(Object.entries(tags));
  let isChanged = false;
  for (const [key, value] of change) {
    if (value === null) isChanged = merged.delete(key) || isChanged;
    else if (merged.get(key) !== value) {
      merged.set(key, value);
      isChanged = true;
    }
  }
  return isChanged ? Object.fromEntries(merged) : undefined;
}

// Groups with a query: keeps their members in step with the devices, by comparing each changed device with the queries of its
// tenant. The cost of a change depends on the number of queries, not of devices.
import { fromJson, type JsonObject, toJson } from '@bufbuild/protobuf';
import { type DeviceFilter, DeviceFilterSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { Loop } from '../../platform/background/loop.ts';
import { isLockTimeout } from '../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { retryConflicts } from '../../platform/database/retry-conflicts.ts';
import { tenantDeleted } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { wholeTenant } from '../../platform/visibility.ts';
import type { TransactionalProfileReader } from '../../policies/profile-reader.ts';
import { tenantDefaults } from '../../policies/tenant-reader.ts';
import { filterConditions, parseTag } from '../devices/device-filters.ts';
import { filtersOf } from '../devices/device-selection.ts';
import {
  advanceWalk,
  countQueryGroups,
  lockForCheck,
  lockWalk,
  nextOfWalk,
  queryGroupLimit,
  queryGroups,
  setMembers,
  type StoredQuery,
  takeChecks,
  takeChecksOf,
  tenantsWithChecks,
  tenantsWithWalks,
} from './query-group-store.ts';
import { TenantTurns } from './tenant-turns.ts';

/**
 * Devices that one transaction compares, and comparisons with a query: each unpacks the tags of a device. The rows of the devices are
 * locked meanwhile, also against signs of life.
 */
const devicesPerTransaction = 500;
const comparisonsPerTransaction = 5000;

const pauseMilliseconds = 1000;

/** How long a tenant's turn waits for its devices while others wait for theirs. */
const lockMilliseconds = 500;

/** How long a change of a query waits until the group's members follow; the rest is done in the background. */
const patienceMilliseconds = 2000;

/** Returns filters as they are stored with a group. */
export const storedQuery = (filter: DeviceFilter): StoredQuery => {
  const json = toJson(DeviceFilterSchema, filter, { useProtoFieldName: true }) as JsonObject;
  // A group's id is compared as text.
  return typeof json['group_id'] === 'string' ? { ...json, group_id: json['group_id'].toLowerCase() } : json;
};

/** Returns the filters that are stored with a group. */
export const readQuery = (query: StoredQuery): DeviceFilter =>
  fromJson(DeviceFilterSchema, query as JsonObject, { ignoreUnknownFields: true });

/** Returns how many devices a transaction compares with so many queries. */
const devicesFor = (queries: number): number =>
  Math.min(devicesPerTransaction, Math.ceil(comparisonsPerTransaction / Math.max(queries, 1)));

/** Keeps the members of groups with a query. */
export class QueryGroups {
  private readonly database: Database;
  private readonly profiles: TransactionalProfileReader;
  private readonly loop: Loop;
  // A tenant with many changes delays only its own groups.
  private readonly turns = { checks: new TenantTurns(), walks: new TenantTurns() };

  constructor(database: Database, profiles: TransactionalProfileReader, logger: Logger) {
    this.database = database;
    this.profiles = profiles;
    this.loop = new Loop(logger, 'groups with a query', pauseMilliseconds, () => this.advance());
  }

  start(): void {
    this.loop.start();
  }

  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** Returns how many devices a transaction may compare with all queries of a tenant. */
  async devicesAtOnce(tx: Transaction, tenantId: string): Promise<number> {
    return devicesFor(await countQueryGroups(tx, tenantId));
  }

  /**
   * Compares devices that the transaction has changed, so that the groups follow in the same transaction; of very many, with very
   * many queries, the loop compares the rest.
   */
  async follow(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
    const isFew = deviceIds.length <= devicesFor(queryGroupLimit.maximum);
    const some = isFew ? deviceIds : deviceIds.slice(0, await this.devicesAtOnce(tx, tenantId));
    const changed = await takeChecksOf(tx, tenantId, some);
    if (changed.length > 0) await this.compare(tx, tenantId, changed, null);
  }

  /** Compares all devices with the query of a group, for as long as a caller may wait; the loop does the rest. */
  async fill(tenantId: string, groupId: string): Promise<void> {
    const end = performance.now() + patienceMilliseconds;
    const step = () => retryConflicts(() => this.database.system((tx) => this.step(tx, tenantId, groupId)));
    while (performance.now() < end && (await step()));
  }

  /** Compares some devices. Returns whether there may be more. */
  private async advance(): Promise<boolean> {
    // A tenant whose devices cannot be compared does not keep the walks of others from being made.
    let failure: { readonly error: unknown } | undefined;
    const hasChecked = await this.takeTurn(this.turns.checks, tenantsWithChecks, async (tx, tenantId) => {
      const deviceIds = await takeChecks(tx, tenantId, await this.devicesAtOnce(tx, tenantId));
      await this.compare(tx, tenantId, deviceIds, null);
      return deviceIds.length > 0;
    }).catch((error: unknown) => {
      failure = { error };
      return false;
    });
    const hasWalked = await this.takeTurn(this.turns.walks, tenantsWithWalks, (tx, tenantId) =>
      this.step(tx, tenantId, undefined),
    );
    if (failure) throw failure.error;
    return hasChecked || hasWalked;
  }

  /** Works for the tenant whose turn it is, or the next if another process does so. Returns whether there was work. */
  private async takeTurn(
    turns: TenantTurns,
    waiting: (tx: Transaction) => Promise<string[]>,
    work: (tx: Transaction, tenantId: string) => Promise<boolean>,
  ): Promise<boolean> {
    const turn = async (tx: Transaction) => {
      await tx.query(`SET LOCAL lock_timeout = ${lockMilliseconds}`);
      for (const tenantId of turns.order(await waiting(tx))) {
        turns.took(tenantId);
        if (await work(tx, tenantId)) return true;
      }
      return false;
    };
    try {
      return await retryConflicts(() => this.database.system(turn));
    } catch (error) {
      // A long change of the tenant holds one of the devices. It is the next tenant's turn.
      if (isLockTimeout(error)) return false;
      throw error;
    }
  }

  /** Takes a step of a walk of a tenant: that of a group, or any. Returns whether there was one. */
  private async step(tx: Transaction, tenantId: string, groupId: string | undefined): Promise<boolean> {
    const walk = await lockWalk(tx, tenantId, groupId);
    if (!walk) return false;
    const most = walk.group_id === null ? await this.devicesAtOnce(tx, tenantId) : devicesFor(1);
    const deviceIds = await nextOfWalk(tx, walk, most);
    await this.compare(tx, tenantId, deviceIds, walk.group_id);
    const isLast = deviceIds.length < most;
    await advanceWalk(tx, walk, isLast ? undefined : deviceIds.at(-1));
    return true;
  }

  /**
   * Compares devices with the queries of the tenant's groups, or of one. Those of a deleted tenant wait: it has no default tags
   * until it is restored.
   */
  private async compare(
    tx: Transaction,
    tenantId: string,
    deviceIds: readonly string[],
    groupId: string | null,
  ): Promise<void> {
    if (deviceIds.length === 0) return;
    const locked = await lockForCheck(tx, tenantId, deviceIds);
    const [groups, defaults] = await Promise.all([queryGroups(tx, tenantId, groupId), tenantDefaults(tx, tenantId)]);
    if (!defaults) throw tenantDeleted();
    const wanted = groups.map(({ group_id: id, query }) => ({ id, filters: filtersOf(readQuery(query), wholeTenant) }));
    const tags = wanted.flatMap(({ filters }) => filters.tags.map(parseTag));
    const profileIds = [...new Set(locked.flatMap((device) => device.profile_id ?? []))];
    const inheriting = await this.profiles.withDefaultTags(tx, tenantId, tags, profileIds);
    const ids = locked.map((row) => row.device_id);
    let place = 0;
    for (const { id, filters } of wanted) {
      const ofTags = inheriting.slice(place, (place += filters.tags.length));
      await setMembers(tx, tenantId, id, ids, filterConditions(filters, ofTags, defaults, 4));
    }
  }
}

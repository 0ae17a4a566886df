// Caches the facts of devices that ingest needs, so that requests do not query the database.
import { LRUCache } from 'lru-cache';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { deviceChannel, profileChannel, tenantChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { unavailable } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { type DeviceFacts, inherit, type TenantDefaultFacts } from '../../policies/inheritance.ts';
import type { ProfileFacts, ProfileReader } from '../../policies/profile-reader.ts';
import { tenantDefaults } from '../../policies/tenant-reader.ts';
import { type Share, SharedFacts } from './shared-facts.ts';

export type { DeviceFacts } from '../../policies/inheritance.ts';

class Entry {
  readonly directory: DeviceDirectory;
  readonly tenantId: string;
  /** Undefined once the entry has left the cache. */
  facts: DeviceFacts | undefined;
  /** What it inherits. */
  readonly share: Share;

  constructor(directory: DeviceDirectory, tenantId: string, facts: DeviceFacts, share: Share) {
    this.directory = directory;
    this.tenantId = tenantId;
    this.facts = facts;
    this.share = share;
  }
}

/**
 * The keys of the devices in the cache by tenant and profile (empty: none), so that a change of one visits no others: tenants may
 * change theirs often, and the cache has hundreds of thousands of devices.
 */
class Heirs {
  private readonly tenants = new Map<string, Map<string, Set<string>>>();

  add(tenantId: string, profileId: string, key: string): void {
    let profiles = this.tenants.get(tenantId);
    if (!profiles) this.tenants.set(tenantId, (profiles = new Map<string, Set<string>>()));
    let keys = profiles.get(profileId);
    if (!keys) profiles.set(profileId, (keys = new Set()));
    keys.add(key);
  }

  delete(tenantId: string, profileId: string, key: string): void {
    const profiles = this.tenants.get(tenantId);
    const keys = profiles?.get(profileId);
    if (!keys?.delete(key) || keys.size > 0) return;
    profiles!.delete(profileId);
    if (profiles!.size === 0) this.tenants.delete(tenantId);
  }

  /** Returns the devices of a profile, or all of the tenant if none is given. */
  of(tenantId: string, profileId: string | undefined): string[] {
    const profiles = this.tenants.get(tenantId);
    if (profileId !== undefined) return [...(profiles?.get(profileId) ?? [])];
    return [...(profiles?.values() ?? [])].flatMap((keys) => [...keys]);
  }
}

/** What names a device in requests, and keeps what the directory has found for it. */
interface Reference {
  keyIn(tenantId: string): string;
  found: unknown;
}

/** Profiles that a lookup reads without waiting for its turn: each takes up to 0.2 MB and 2 ms. */
const fewProfiles = 16;
const turnMilliseconds = 5000;

/** Every so many requests are looked up in the cache in any case, so that it knows which devices are in use. */
const requestsPerUse = 16;

/** A running load from the database. Facts that change meanwhile are returned but not cached. */
interface Load {
  readonly tenantId: string;
  readonly changed: Set<string>;
  allChanged: boolean;
}

/** Roughly what an entry takes in memory, without the schema and the policy that it shares with others. */
const bytesOf = ({ facts }: Entry): number =>
  1000 + Object.entries(facts!.effectiveTags).reduce((sum, [key, value]) => sum + key.length + value.length + 80, 0);

interface OwnRow {
  device_id: string;
  name: string;
  hardware_id: string;
  profile_id: string | null;
  gateway_device_id: string | null;
  customer_id: string | null;
  tags: Record<string, string>;
}

/**
 * Facts of devices, cached up to a number of bytes (least recently used first out). PostgreSQL's notifications evict
 * changed devices; while the listening connection is lost nothing is cached.
 */
export class DeviceDirectory {
  private readonly database: Database;
  private readonly profiles: ProfileReader;
  private readonly entries: LRUCache<string, Entry>;
  private readonly heirs = new Heirs();
  private readonly maximumBytes: number;
  private readonly sharedProfiles = new SharedFacts<ProfileFacts>();
  private readonly sharedDefaults = new SharedFacts<TenantDefaultFacts>();
  private readonly loads = new Set<Load>();
  /** Turns of lookups that read many profiles: the next one finds what the one before has read. */
  private readonly turns = new FairSlots({
    ...{ total: 2, perOwner: 1, waitingPerOwner: 1000 },
    refusal: () => unavailable('too many profiles are being read: try again'),
  });
  private listening = false;
  private requests = 0;
  private readonly followers: ((device: string | undefined) => void)[] = [];

  constructor(database: Database, profiles: ProfileReader, maximumBytes = 200 * 2 ** 20) {
    this.database = database;
    this.profiles = profiles;
    this.maximumBytes = maximumBytes;
    this.entries = new LRUCache({
      maxSize: maximumBytes,
      sizeCalculation: bytesOf,
      dispose: (entry, key) => {
        this.heirs.delete(entry.tenantId, entry.facts!.profileId, key);
        entry.facts = undefined;
        entry.share.release();
      },
    });
    database.listen(
      [deviceChannel, profileChannel, tenantChannel],
      (channel, payload) => this.forget(channel, payload),
      (lost) => {
        this.forgetAll();
        this.listening = !lost;
      },
    );
  }

  /**
   * Returns the facts of those of the devices that exist in the tenant, by the id as requested. Unknown, deleted and
   * foreign devices and malformed ids are omitted. Throws UNAVAILABLE when the database is unavailable and not all are
   * cached, or many profiles have to be read and the turn of the tenant does not come in time.
   */
  async lookup(tenantId: string, deviceIds: readonly string[]): Promise<Map<string, DeviceFacts>> {
    const found = new Map<string, DeviceFacts>();
    const missing = new Set<string>();
    for (const id of deviceIds) {
      if (found.has(id)) continue;
      const key = `${tenantId}/${id}`;
      const facts = this.entries.get(key)?.facts;
      if (facts) found.set(id, facts);
      else if (isId(id)) missing.add(id);
    }
    if (missing.size > 0) {
      const loaded = await this.load(tenantId, [...missing]);
      for (const id of missing) {
        const facts = loaded.get(id.toLowerCase());
        if (facts) found.set(id, facts);
      }
    }
    return found;
  }

  /**
   * Returns the same as `lookup`, for each id in turn: undefined for those that are omitted there. `references` are the devices of
   * the ids, if they are at hand: in a large fleet, finding an entry by its key takes as long as reading the point.
   */
  async lookupEach(
    tenantId: string,
    deviceIds: readonly string[],
    references?: readonly Reference[],
  ): Promise<readonly (DeviceFacts | undefined)[]> {
    const found: (DeviceFacts | undefined)[] = [];
    let isComplete = true;
    this.requests += 1;
    const isUse = this.requests % requestsPerUse === 0;
    for (let index = 0; isComplete && index < deviceIds.length; index += 1) {
      const id = deviceIds[index]!;
      if (index > 0 && id === deviceIds[index - 1]) found.push(found[index - 1]);
      else {
        const reference = references?.[index];
        const facts = (isUse ? undefined : this.known(reference, tenantId)) ?? this.find(tenantId, id, reference);
        found.push(facts);
        isComplete = facts !== undefined;
      }
    }
    if (isComplete) return found;
    const loaded = await this.lookup(tenantId, deviceIds);
    return deviceIds.map((id) => loaded.get(id));
  }

  /** Returns what a reference has kept, if it is in the cache still. */
  private known(reference: Reference | undefined, tenantId: string): DeviceFacts | undefined {
    const entry = reference?.found;
    return entry instanceof Entry && entry.directory === this && entry.tenantId === tenantId ? entry.facts : undefined;
  }

  private find(tenantId: string, id: string, reference: Reference | undefined): DeviceFacts | undefined {
    const entry = this.entries.get(reference?.keyIn(tenantId) ?? `${tenantId}/${id}`);
    if (reference) reference.found = entry;
    return entry?.facts;
  }

  /** Calls back for each changed device, `tenant/device`, and with undefined when changes may have been missed. */
  follow(changed: (device: string | undefined) => void): void {
    this.followers.push(changed);
  }

  /** Evicts a device that a committed transaction has changed, so that this process need not wait for the notification. */
  evict(tenantId: string, deviceId: string): void {
    this.forget(deviceChannel, `${tenantId}/${deviceId}`);
  }

  private async load(tenantId: string, deviceIds: readonly string[]): Promise<Map<string, DeviceFacts>> {
    const load: Load = { tenantId, changed: new Set(), allChanged: !this.listening };
    this.loads.add(load);
    let leave: (() => void) | undefined;
    try {
      const [defaults, { rows }] = await this.database.read(tenantId, (tx) =>
        Promise.all([
          tenantDefaults(tx, tenantId, this.sharedDefaults.get(tenantId)),
          tx.query<OwnRow>(
            `SELECT device_id, name, hardware_id, profile_id, gateway_device_id, customer_id, tags FROM devices
             WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL`,
            [tenantId, deviceIds],
          ),
        ]),
      );
      if (defaults === undefined) return new Map();
      const profileIds = new Set(rows.flatMap((row) => row.profile_id ?? []));
      const unread = [...profileIds].filter((id) => !this.sharedProfiles.get(`${tenantId}/${id}`)).length;
      if (unread > fewProfiles) leave = await this.turns.acquire(tenantId, { milliseconds: turnMilliseconds });
      const read = await this.profilesOf(tenantId, profileIds);
      // Other loads have read the same, and what they have kept is used from here on.
      const profiles = new Map(
        [...read].map(([id, profile]) => [id, this.sharedProfiles.same(`${tenantId}/${id}`, profile)]),
      );
      const inherited = this.sharedDefaults.same(tenantId, defaults);
      const facts = resolve(tenantId, rows, profiles, inherited);
      for (const [id, device] of facts) {
        if (load.allChanged || load.changed.has(id)) continue;
        const profile = profiles.get(device.profileId);
        const share = profile
          ? this.sharedProfiles.use(`${tenantId}/${device.profileId}`, profile)
          : this.sharedDefaults.use(tenantId, inherited);
        const [key, entry] = [device.key ?? `${tenantId}/${id}`, new Entry(this, tenantId, device, share)];
        this.entries.set(key, entry);
        if (this.entries.peek(key) === entry) this.heirs.add(tenantId, device.profileId, key);
        // One that is larger than the cache is not kept.
        else share.release();
      }
      this.shrink();
      return facts;
    } finally {
      // Once the devices are in the cache, and with them the profiles.
      leave?.();
      this.loads.delete(load);
    }
  }

  private async profilesOf(tenantId: string, ids: ReadonlySet<string>): Promise<Map<string, ProfileFacts>> {
    const profiles = new Map<string, ProfileFacts>();
    for (const id of ids) {
      const profile = await this.profiles.get(tenantId, id, this.sharedProfiles.get(`${tenantId}/${id}`));
      if (profile) profiles.set(id, profile);
    }
    return profiles;
  }

  /** Evicts devices until those that are left fit with what they share. */
  private shrink(): void {
    const bytes = () => this.entries.calculatedSize + this.sharedProfiles.bytes + this.sharedDefaults.bytes;
    while (bytes() > this.maximumBytes && this.entries.size > 1) this.entries.pop();
  }

  private forget(channel: string, payload: string): void {
    const [tenantId = '', id = ''] = payload.split('/');
    if (channel === deviceChannel) {
      this.entries.delete(payload);
      for (const load of this.loads) if (load.tenantId === tenantId) load.changed.add(id);
      for (const changed of this.followers) changed(payload);
      return;
    }
    for (const load of this.loads) if (load.tenantId === tenantId) load.allChanged = true;
    for (const key of this.heirs.of(tenantId, channel === tenantChannel ? undefined : id)) this.entries.delete(key);
  }

  private forgetAll(): void {
    this.entries.clear();
    for (const load of this.loads) load.allChanged = true;
    for (const changed of this.followers) changed(undefined);
  }
}

function resolve(
  tenantId: string,
  rows: readonly OwnRow[],
  profiles: ReadonlyMap<string, ProfileFacts>,
  defaults: TenantDefaultFacts,
): Map<string, DeviceFacts> {
  return new Map(
    rows.map((row) => {
      const own = {
        deviceId: row.device_id,
        name: row.name,
        hardwareId: row.hardware_id,
        profileId: row.profile_id ?? '',
        gatewayDeviceId: row.gateway_device_id ?? '',
        customerId: row.customer_id ?? '',
        tags: row.tags,
      };
      const facts = inherit(own, profiles.get(own.profileId), defaults);
      const memory = { latest: undefined, life: undefined };
      return [row.device_id, { ...facts, key: `${tenantId}/${row.device_id}`, memory }];
    }),
  );
}

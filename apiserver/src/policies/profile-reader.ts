// Read access to profiles, implemented by provisioning, which owns them.
import type { OtaPolicy, TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';
import type { AnchorMode } from '@kellet/verify';
import type { Transaction } from '../platform/database/database.ts';

/** A profile as devices inherit from it. */
export interface ProfileFacts {
  readonly profileId: string;
  readonly name: string;
  /** Device type label. */
  readonly type: string;
  readonly defaultTags: Readonly<Record<string, string>>;
  /** Undefined: the profile states none, so any point is valid. */
  readonly telemetrySchema: TelemetrySchema | undefined;
  /** Undefined: the tenant's default. */
  readonly anchoringMode: AnchorMode | undefined;
  /** 0: the tenant's default. */
  readonly offlineAfterSeconds: number;
  /** Undefined: the platform's defaults. */
  readonly otaPolicy: OtaPolicy | undefined;
  /** Another one for any other state of the profile. */
  readonly revision?: string;
}

/** What the messages of devices show of their profile. */
export type ShownProfile = Pick<ProfileFacts, 'profileId' | 'name' | 'defaultTags'>;

/** A tag of a device. */
export interface Tag {
  readonly key: string;
  readonly value: string;
}

/** Read access to the profiles of a tenant. Profiles that do not exist, or belong to another tenant, are undefined. */
export interface ProfileReader {
  /** `known` is returned itself while the profile is as it was then; so its schema need not be read and kept again. */
  get(tenantId: string, profileId: string, known?: ProfileFacts): Promise<ProfileFacts | undefined>;
}

/** Also reads profiles inside a transaction, for decisions under a lock. */
export interface TransactionalProfileReader extends ProfileReader {
  /** `FOR KEY SHARE` keeps the profile from being deleted until the transaction ends. */
  getWithin(
    tx: Transaction,
    tenantId: string,
    profileId: string,
    lock?: 'FOR KEY SHARE',
  ): Promise<ProfileFacts | undefined>;
  /** Returns what is shown of those of the profiles that exist, by their ids. Reads no schemas, which take up to a megabyte each. */
  shown(tx: Transaction, tenantId: string, profileIds: readonly string[]): Promise<ReadonlyMap<string, ShownProfile>>;
  /** Keeps those of the profiles that exist from being deleted until the transaction ends, and returns their ids. */
  hold(tx: Transaction, tenantId: string, profileIds: readonly string[]): Promise<ReadonlySet<string>>;
  /** Returns for each tag the ids of the profiles, or of some of them, that have it among their default tags. */
  withDefaultTags(
    tx: Transaction,
    tenantId: string,
    tags: readonly Tag[],
    among?: readonly string[],
  ): Promise<readonly (readonly string[])[]>;
  /** Returns the ids of the profiles with one of the names, by name. */
  idsByName(tx: Transaction, tenantId: string, names: readonly string[]): Promise<ReadonlyMap<string, string>>;
}

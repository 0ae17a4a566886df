// Dependencies of the handlers.
import type { DeviceCredentials } from '../auth/credentials/device-credentials.ts';
import type { Platform } from '../config/module.ts';
import type { Peers } from '../internal/peers.ts';
import type { Transaction } from '../platform/database/database.ts';
import type { EntityParts } from './entities/entity-parts.ts';
import type { Liveness } from './liveness.ts';
import type { QueryGroups } from './query-groups.ts';
import type { MembershipListener } from './membership.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';

/** Describes what outside the registry uses a device group, which therefore must stay; undefined if nothing does. */
export type GroupUsage = (tx: Transaction, tenantId: string, groupId: string) => Promise<string | undefined>;

/** The dependencies. */
export type RegistryParts = Pick<Platform, 'database' | 'paging' | 'clock'> & {
  readonly profiles: TransactionalProfileReader;
  readonly liveness: Liveness;
  /** What other processes know; undefined if this is the only one. */
  readonly peers?: Peers | undefined;
  readonly membership: MembershipListener;
  readonly groupUsage: GroupUsage;
  readonly queryGroups: QueryGroups;
  readonly credentials: DeviceCredentials;
};

/** What only other services know about the use of groups and customers. */
export interface Usage {
  readonly ofGroup: GroupUsage;
  readonly customerHasUsers: EntityParts['customerHasUsers'];
}

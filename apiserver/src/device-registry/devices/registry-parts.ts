// Dependencies of the handlers.
import type { DeviceCredentials } from '../../auth/device-credentials/device-credentials.ts';
import type { Platform } from '../../config/module.ts';
import type { Peers } from '../../internal/peers.ts';
import type { Transaction } from '../../platform/database/database.ts';
import type { TransactionalProfileReader } from '../../policies/profile-reader.ts';
import type { Liveness } from '../liveness/liveness.ts';
import type { MembershipListener } from './fleet-changes.ts';

/** Keeps the members of groups with a query in step with the devices. */
export interface QueryGroupFollower {
  /** Compares devices that the transaction has changed with the queries, so that the groups follow in that transaction. */
  follow(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void>;
  /** Returns how many devices a transaction may compare with all queries of a tenant. */
  devicesAtOnce(tx: Transaction, tenantId: string): Promise<number>;
}

/** The dependencies. */
export type RegistryParts = Pick<Platform, 'database' | 'paging' | 'clock'> & {
  readonly profiles: TransactionalProfileReader;
  readonly liveness: Liveness;
  /** What other processes know; undefined if this is the only one. */
  readonly peers?: Peers | undefined;
  readonly membership: MembershipListener;
  readonly queryGroups: QueryGroupFollower;
  readonly credentials: DeviceCredentials;
};

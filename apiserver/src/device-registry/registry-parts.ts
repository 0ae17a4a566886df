// Dependencies of the handlers.
import type { Platform } from '../config/module.ts';
import type { Peers } from '../internal/peers.ts';
import type { Liveness } from './liveness.ts';
import type { MembershipListener } from './membership.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';

/** The dependencies. */
export type RegistryParts = Pick<Platform, 'database' | 'paging'> & {
  readonly profiles: TransactionalProfileReader;
  readonly liveness: Liveness;
  /** What other processes know; undefined if this is the only one. */
  readonly peers?: Peers | undefined;
  readonly membership: MembershipListener;
};

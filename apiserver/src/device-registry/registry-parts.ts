// Dependencies of the handlers.
import type { Platform } from '../config/module.ts';
import type { Liveness } from './liveness.ts';
import type { MembershipListener } from './membership.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';

/** The dependencies. */
export type RegistryParts = Pick<Platform, 'database' | 'paging'> & {
  readonly profiles: TransactionalProfileReader;
  readonly liveness: Liveness;
  readonly membership: MembershipListener;
};

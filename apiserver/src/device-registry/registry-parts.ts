// Dependencies of the handlers.
import type { Platform } from '../config/module.ts';
import type { Liveness } from './liveness.ts';
import type { MembershipListener } from './membership.ts';
import type { ProfileReader } from '../policies/profile-reader.ts';

/** The dependencies. */
export type RegistryParts = Pick<Platform, 'database' | 'paging'> & {
  readonly profiles: ProfileReader;
  readonly liveness: Liveness;
  readonly membership: MembershipListener;
};

// Notifies the keepers of groups of devices of changes, in the transaction that makes them.
//
// Lock order, for every transaction of the data plane that locks several of these rows:
//   1. one row of applied_versions, then one of profiles, provisioning_templates, provision_keys or ota_packages
//   2. devices, in order of tenant_id and device_id; with each its part of profile_devices, by a trigger
//   3. advisory locks of profiles, in order of profile id (profileRolloutsLock)
//   4. ota_rollouts, in order of rollout_id
//   5. ota_rollout_devices, ota_assignments, device_commands: only below the lock of their device or rollout
import type { Transaction } from '../../platform/database/database.ts';

/** The part of a device that decides which groups it belongs to. */
export interface FleetFacts {
  readonly deviceId: string;
  readonly hardwareId: string;
  /** null if none. */
  readonly profileId: string | null;
  /** Empty if the device has never reported one. */
  readonly firmwareVersion: string;
  readonly softwareVersion: string;
}

/** One device before and after a change; undefined where it does not exist. */
export interface FleetChange {
  readonly before?: FleetFacts | undefined;
  readonly after?: FleetFacts | undefined;
}

/** Called by the transaction that changes devices or profiles. */
export interface MembershipListener {
  /**
   * Handles changed devices, each listed once. Their rows are written and locked by the transaction. The cost must not
   * depend on the size of the fleet.
   */
  devicesChanged(tx: Transaction, tenantId: string, changes: readonly FleetChange[]): Promise<void>;
  /** Handles a changed profile, whose row is written. */
  profileChanged(
    tx: Transaction,
    tenantId: string,
    profileId: string,
    policy: { readonly requireSignature: boolean },
  ): Promise<void>;
}

// What the registry tells of its devices to whoever keeps groups of them, in the transaction that changes them.
//
// Lock order, for every transaction of the data plane that locks several of these rows:
//   1. one row of applied_versions, then one of profiles, provisioning_templates, provision_keys or ota_packages
//   2. devices, in order of tenant_id and device_id
//   3. advisory locks of profiles, in order of profile id (profileRolloutsLock)
//   4. ota_rollouts, in order of rollout_id
//   5. ota_rollout_devices, ota_assignments, device_commands: only below the lock of their device or rollout
import type { Transaction } from '../platform/database/database.ts';

/** What of a device decides which groups it belongs to. */
export interface FleetFacts {
  readonly deviceId: string;
  readonly hardwareId: string;
  /** null: none. */
  readonly profileId: string | null;
  /** Empty when the device never reported one. */
  readonly firmwareVersion: string;
  readonly softwareVersion: string;
}

/** One device before and after a change; undefined: it did not exist, or does not any more. */
export interface FleetChange {
  readonly before?: FleetFacts | undefined;
  readonly after?: FleetFacts | undefined;
}

/** Told of changes by the transaction that makes them. */
export interface MembershipListener {
  /**
   * Takes note of changed devices, each named once. Their rows are written, and locked by the transaction. Costs the same
   * whatever the size of the fleet.
   */
  devicesChanged(tx: Transaction, tenantId: string, changes: readonly FleetChange[]): Promise<void>;
  /** Takes note of a changed profile, whose row is written. */
  profileChanged(
    tx: Transaction,
    tenantId: string,
    profileId: string,
    policy: { readonly requireSignature: boolean },
  ): Promise<void>;
}

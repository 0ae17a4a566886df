// A device's own assignment, which overrides what a rollout assigns.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AssignmentSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { findDevice, fleetFacts } from '../../../device-registry/devices/devices.ts';
import type { FleetFacts } from '../../../device-registry/devices/fleet-changes.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import { failedPrecondition, invalidArgument, KelletError, notFound } from '../../../platform/errors.ts';
import { idField } from '../../../platform/requests/fields.ts';
import { wholeTenant } from '../../../platform/visibility.ts';
import type { TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import {
  endOpenCommands,
  enqueueCommand,
  findCommandState,
  holdEndedUpdates,
  releaseEndedUpdates,
} from '../../commands/commands.ts';
import {
  assignedPackages,
  deleteOverride,
  findOverride,
  type OverrideRow,
  setOverride,
} from '../assignments/assignment-store.ts';
import { getPackage, type PackageRow } from '../packages/package-store.ts';
import { lacksSignature } from '../packages/signature.ts';
import { deviceRequiresSignature } from '../packages/signature-policy-store.ts';
import { unusable } from '../packages/usability.ts';
import { candidateOf, exclusion, targetOf, versionOf } from '../rollouts/decisions/cohort.ts';
import type { RolloutMembership } from '../rollouts/membership.ts';
import { startParams } from '../rollouts/work/scheduling.ts';

/** Lifetime of the command: the default of persistent commands. */
const commandSeconds = 7 * 24 * 3600;

/**
 * Sets and removes them. A device that gets one leaves a running rollout of the same type as a deleted device does: it is no
 * longer counted, and may no longer download the rollout's package. Once the assignment is removed the device is eligible again.
 */
export class Overrides {
  private readonly database: Database;
  private readonly profiles: TransactionalProfileReader;
  private readonly membership: RolloutMembership;

  constructor(database: Database, profiles: TransactionalProfileReader, membership: RolloutMembership) {
    this.database = database;
    this.profiles = profiles;
    this.membership = membership;
  }

  /**
   * Assigns a package to a device and sends it the command `ota_start`. Throws NOT_FOUND if either does not exist,
   * INVALID_ARGUMENT if the package is missing, rejected or for other devices, FAILED_PRECONDITION if it cannot be used, lacks the
   * signature that the device's profile requires, or cannot be installed over the version that the device reported.
   */
  async set(tenantId: string, deviceId: string, packageId: string): Promise<MessageInitShape<typeof AssignmentSchema>> {
    if (packageId === '') throw invalidArgument('package_id is required');
    return this.transaction(tenantId, async (tx) => {
      // Packages are locked before devices (device-registry/devices/fleet-changes.ts).
      const package_ = await getPackage(tx, tenantId, packageId, 'package_id', 'FOR SHARE');
      const { device, before } = await lockDevice(tx, tenantId, deviceId);
      const problem = unusable(package_);
      if (problem) throw new KelletError(problem.code, `package_id: ${problem.message}`);
      await this.checkCompatibility(tx, tenantId, device, package_);
      if (lacksSignature(await deviceRequiresSignature(tx, tenantId, device.deviceId), package_)) {
        throw failedPrecondition('package_id: the device takes packages with a verified signature alone');
      }
      await this.membership.overrideChanged(tx, tenantId, device, before?.type, package_.type);
      const correlationId = await this.command(tx, tenantId, device, before, package_);
      await setOverride(tx, tenantId, device.deviceId, package_.package_id, correlationId);
      const own = (await findOverride(tx, tenantId, device.deviceId))!;
      return { deviceId, packageId: own.package_id, createdAt: timestampFromDate(own.created_at) };
    });
  }

  /** Removes a device's assignment. Throws NOT_FOUND if it has none. */
  remove(tenantId: string, deviceId: string): Promise<void> {
    return this.transaction(tenantId, async (tx) => {
      const { device, before } = await lockDevice(tx, tenantId, deviceId);
      if (!before) throw notFound('assignment');
      await deleteOverride(tx, tenantId, device.deviceId);
      await this.membership.overrideChanged(tx, tenantId, device, before.type, undefined);
      await endOpenCommands(tx, tenantId, commandOf(before), 'cancelled');
      const assigned = await assignedPackages(tx, tenantId, device.deviceId);
      if (assigned.some(({ slot }) => slot === `next_${before.type}`)) return;
      await releaseEndedUpdates(tx, tenantId, [device.deviceId], before.type);
    });
  }

  /**
   * Returns the id of the command that tells the device of its assignment, or undefined if it has reported the version already.
   * While the command of the same assignment is open it stays; a former assignment's is cancelled.
   */
  private async command(
    tx: Transaction,
    tenantId: string,
    device: FleetFacts,
    before: OverrideRow | undefined,
    package_: PackageRow,
  ): Promise<string | undefined> {
    const { deviceId } = device;
    const former = before?.correlation_id
      ? await findCommandState(tx, tenantId, before.correlation_id, wholeTenant)
      : undefined;
    const isOpen = former !== undefined && former.finished_at === null;
    if (isOpen && before?.package_id === package_.package_id) return before.correlation_id!;
    await endOpenCommands(tx, tenantId, commandOf(before), 'cancelled');
    if (before && before.type !== package_.type) await releaseEndedUpdates(tx, tenantId, [deviceId], before.type);
    await holdEndedUpdates(tx, tenantId, [deviceId], package_.type);
    if (package_.version === versionOf(device, package_.type)) return undefined;
    const { correlationId } = await enqueueCommand(tx, {
      ...{ tenantId, deviceId, method: 'ota_start', params: startParams('', package_) },
      ...{ persistent: true, expiresInSeconds: commandSeconds },
    });
    return correlationId;
  }

  /** Throws if a rollout would exclude the device. One that has the version already may get it again. */
  private async checkCompatibility(
    tx: Transaction,
    tenantId: string,
    device: FleetFacts,
    package_: PackageRow,
  ): Promise<void> {
    const profile =
      device.profileId === null ? undefined : await this.profiles.getWithin(tx, tenantId, device.profileId);
    const target = targetOf(package_);
    const candidate = candidateOf(device, target, package_.type, { overridden: false, member: false });
    switch (exclusion(candidate, target, profile?.type ?? '')) {
      case 'device_type':
        throw invalidArgument(`package_id: the package is for devices of type ${target.deviceType}`);
      case 'hardware_id':
        throw invalidArgument('package_id: the package is for devices with another hardware_id');
      case 'below_min_version':
        throw failedPrecondition(`package_id: the device must have version ${target.minVersion} or later`);
      case 'above_max_version':
        throw failedPrecondition(`package_id: the device must have version ${target.maxVersion} or earlier`);
      // Assigning an older version to a single device is a request for the downgrade.
      case 'downgrade':
      case 'already_on_version':
      case 'device_override':
      case undefined:
    }
  }

  private transaction<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    return retriedTransactions(this.database)(tenantId, work);
  }
}

/** Locks a device and returns it with its own assignment, if any. Throws NOT_FOUND. */
async function lockDevice(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
): Promise<{ device: FleetFacts; before: OverrideRow | undefined }> {
  const id = idField('device_id', deviceId);
  const device = await findDevice(tx, tenantId, id, 'FOR NO KEY UPDATE');
  if (!device) throw notFound('device_id');
  return { device: fleetFacts(device), before: await findOverride(tx, tenantId, id) };
}

/** Returns the id of the command of an assignment, if it has one. */
const commandOf = (override: OverrideRow | undefined): string[] =>
  override?.correlation_id ? [override.correlation_id] : [];

// A rollout's manifest → its row; a new one gets its canary scheduled in the same call.
import { equals } from '@bufbuild/protobuf';
import {
  OtaRolloutSpecSchema,
  type ObjectMeta,
  type OtaRolloutObservedSchema,
  type OtaRolloutSpec,
} from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { RefusalError, type Applied, type Applier, type LastStep, type Refusal } from '../../../control/applier.ts';
import { takeUp } from '../../../control/applied-versions.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { profileRolloutsLock } from '../../../platform/database/advisory-locks.ts';
import { retryConflicts } from '../../../platform/database/retry-conflicts.ts';
import { namedId, rolloutId } from '../../../platform/ids.ts';
import { cancelUndelivered } from '../../commands/commands.ts';
import { unassignUndelivered } from '../assignments/assignments.ts';
import { takeOutDeparted } from './membership.ts';
import { observe } from './observed.ts';
import { findPackage, type PackageRow } from '../packages/package-store.ts';
import { phaseOf } from './progress.ts';
import { beginRollback } from './rollback.ts';
import { deviceTimeout } from './policy.ts';
import {
  beginStage,
  complete,
  effectivePercent,
  holdForSignature,
  pauseIfExceeded,
  requestRollback,
  settlePhase,
  type RolloutEvent,
  type RolloutState,
} from './rollout-state.ts';
import {
  findRollout,
  insertRollout,
  lockRollout,
  otherRunningRollout,
  publishRolloutEvent,
  saveRollout,
  updateIdentity,
} from './rollout-store.ts';
import { readCohort, scheduleDevices, type Cohort } from './scheduling.ts';
import { lacksSignature } from '../packages/signature.ts';
import { fleetProblem } from './rollout-validation.ts';

type Observed = MessageInitShape<typeof OtaRolloutObservedSchema>;

/** What a manifest refers to, found. */
interface Referents {
  readonly package_: PackageRow;
  readonly profile: ProfileFacts;
  readonly rollback: PackageRow | undefined;
}

/** A rollout that may begin: what it refers to, and the fleet it is for. */
export interface Judgement extends Referents {
  readonly cohort: Cohort;
}

/** Applies and removes rollouts (control, OtaRollout). */
export class RolloutApplier implements Applier<OtaRolloutSpec, Observed> {
  private readonly database: Database;
  private readonly profiles: TransactionalProfileReader;
  private readonly clock: Clock;

  constructor(database: Database, profiles: TransactionalProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  /**
   * One transaction, whatever the size of the fleet: a new rollout gets the first devices of its canary, and the operator has
   * the others scheduled (AdvanceRollout).
   */
  async apply(meta: ObjectMeta, spec: OtaRolloutSpec, last?: LastStep): Promise<Applied<Observed>> {
    const { tenantId } = meta;
    const profileId = namedId(tenantId, 'profile', spec.profileName);
    const id = rolloutId(tenantId, meta.name, namedId(tenantId, 'package', spec.packageName), profileId);
    const transaction = async (tx: Transaction): Promise<Applied<Observed>> => {
      await takeUp(tx, 'OtaRollout', meta);
      const existing = await findRollout(tx, tenantId, id, 'FOR UPDATE');
      if (existing) {
        await restoreIdentity(tx, meta, spec, id);
        await this.update(tx, existing, spec, await this.profiles.getWithin(tx, tenantId, profileId));
      } else await this.create(tx, meta, spec, id);
      const state = await lockRollout(tx, tenantId, id);
      const observed = await observe(tx, state, new Date(this.clock.now()));
      await last?.(tx);
      return { id, observed };
    };
    return retryConflicts(() => this.database.tenant(tenantId, transaction));
  }

  private async create(tx: Transaction, meta: ObjectMeta, spec: OtaRolloutSpec, id: string): Promise<void> {
    const profileId = namedId(meta.tenantId, 'profile', spec.profileName);
    // One creation at a time per profile: whoever comes second sees the first.
    await tx.query(`SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, [
      profileRolloutsLock(meta.tenantId, profileId),
    ]);
    // Read under the lock: a change of the profile is seen here, or finds the rollout.
    const profile = await this.profiles.getWithin(tx, meta.tenantId, profileId);
    const { package_, profile: target, rollback, cohort } = await this.judge(tx, meta.tenantId, spec, id, profile);
    await insertRollout(tx, {
      tenantId: meta.tenantId,
      rolloutId: id,
      name: meta.name,
      namespace: meta.namespace,
      displayName: meta.displayName || meta.name,
      packageId: package_.package_id,
      profileId: target.profileId,
      rollbackPackageId: rollback?.package_id,
      phase: phaseOf({ completed: false, rollingBack: false, heldBySpec: spec.paused, pauseConditions: [] }),
      spec,
    });
    const state = await lockRollout(tx, meta.tenantId, id);
    await publishRolloutEvent(tx, state, 'started', this.clock);
    state.eligible = cohort.devices.length;
    if (state.phase === 'active') await scheduleDevices(tx, state, cohort, package_, new Date(this.clock.now()));
    await saveRollout(tx, state, this.clock);
  }

  /**
   * Whether the rollout may begin now, and with which devices: what a plan and a creation are both decided by. Throws the
   * refusal when it may not. Changes nothing.
   */
  async judge(
    tx: Transaction,
    tenantId: string,
    spec: OtaRolloutSpec,
    id: string,
    profile: ProfileFacts | undefined,
  ): Promise<Judgement> {
    const referents = await this.resolve(tx, tenantId, spec, profile);
    const { package_, profile: target } = referents;
    const other = await otherRunningRollout(tx, tenantId, target.profileId, package_.type, id);
    if (other) {
      throw new RefusalError(
        'RolloutInProgress',
        `rollout ${other} of this profile and package type has not completed`,
      );
    }
    // The rollout does not exist yet: it has no members that would have to be read.
    const cohort = await readCohort(tx, tenantId, target, package_, undefined);
    const problem = fleetProblem(cohort);
    if (problem) throw new RefusalError('InvalidSpec', `packageRef: ${problem}`);
    return { ...referents, cohort };
  }

  /** Finds what the manifest refers to, or refuses with what is missing or not ready. */
  private async resolve(
    tx: Transaction,
    tenantId: string,
    spec: OtaRolloutSpec,
    profile: ProfileFacts | undefined,
  ): Promise<Referents> {
    if (!profile)
      throw new RefusalError('ReferenceNotFound', `targetProfileRef: DeviceProfile ${spec.profileName} not found`);
    const package_ = await findPackage(tx, tenantId, namedId(tenantId, 'package', spec.packageName), 'FOR SHARE');
    if (!package_) throw new RefusalError('ReferenceNotFound', `packageRef: OtaPackage ${spec.packageName} not found`);
    requireAvailable('packageRef', package_);
    // The way back may be superseded, the update may not.
    if (package_.status === 'deprecated') {
      throw new RefusalError('ReferenceNotReady', 'packageRef: the package is deprecated, not available');
    }
    const rollback = spec.rollbackPackageName
      ? await resolveRollback(tx, tenantId, spec.rollbackPackageName, package_, profile)
      : undefined;
    requireDeviceType('packageRef', package_, profile);
    requireSigned('packageRef', package_, profile);
    if (rollback) requireSigned('rollbackPackageRef', rollback, profile);
    return { package_, profile, rollback };
  }

  /** Brings a row that exists up to its manifest. Policy may change at any time and never restarts anything. */
  private async update(
    tx: Transaction,
    state: RolloutState,
    spec: OtaRolloutSpec,
    profile: ProfileFacts | undefined,
  ): Promise<void> {
    if (state.phase === 'completed') return;
    const events: (RolloutEvent | undefined)[] = [];
    let changed = false;
    if (!equals(OtaRolloutSpecSchema, state.spec, spec)) {
      const wasHeld = state.spec.paused;
      const covered = effectivePercent(state);
      state.spec = spec;
      if (effectivePercent(state) > covered) beginStage(state);
      // Devices are never unscheduled: what they were scheduled for stays covered when the manifest is lowered.
      if (effectivePercent(state) < covered && state.scheduled > 0) state.expandedToPercent = covered;
      changed = true;
      settlePhase(state);
      if (wasHeld && state.phase === 'active') events.push('resumed');
    }
    if (await this.takeRollbackPackage(tx, state, spec, profile)) changed = true;
    if (spec.rolledBack && state.phase !== 'rolling_back') {
      if (!state.rollbackPackageId) {
        throw new RefusalError('InvalidSpec', 'desiredState: RolledBack needs a rollbackPackageRef');
      }
      events.push(await this.turnBack(tx, state, 'spec.desiredState', profile));
      changed = true;
    }
    const paused = pauseIfExceeded(state, new Date(this.clock.now()));
    if (changed || paused) await saveRollout(tx, state, this.clock, ...events, paused);
  }

  /** Takes the rollback package from the manifest unless devices are rolling back already. Reports whether it changed. */
  private async takeRollbackPackage(
    tx: Transaction,
    state: RolloutState,
    spec: OtaRolloutSpec,
    profile: ProfileFacts | undefined,
  ): Promise<boolean> {
    if (!spec.rollbackPackageName || state.phase === 'rolling_back') return false;
    const packageId = namedId(state.tenantId, 'package', spec.rollbackPackageName);
    if (state.rollbackPackageId === packageId) return false;
    const update = await findPackage(tx, state.tenantId, state.packageId);
    const rollback = await resolveRollback(tx, state.tenantId, spec.rollbackPackageName, update, profile);
    requireSigned('rollbackPackageRef', rollback, profile);
    state.rollbackPackageId = packageId;
    return true;
  }

  /** Requests the rollback and sends the way back. The row is locked; the caller saves, and has read the profile under the lock. */
  async turnBack(
    tx: Transaction,
    state: RolloutState,
    by: string,
    profile: ProfileFacts | undefined,
  ): Promise<RolloutEvent | undefined> {
    const now = new Date(this.clock.now());
    const event = requestRollback(state, by, now);
    if (!event) return undefined;
    const rollback = await findPackage(tx, state.tenantId, state.rollbackPackageId!);
    if (!rollback) throw new RefusalError('ReferenceNotFound', 'the rollback package has been deleted');
    requireSigned('the rollback package', rollback, profile);
    await beginRollback(tx, state, rollback, deviceTimeout(state.spec, profile?.otaPolicy), now);
    return event;
  }

  /**
   * Looks over the fleet: counts the eligible devices anew, takes out members that are gone, pauses when that crosses the
   * threshold, and, while the rollout is active, schedules one transaction's worth of devices. Returns how many wait.
   */
  async scheduleOnce(tx: Transaction, state: RolloutState, profile: ProfileFacts): Promise<number> {
    if (state.phase !== 'active' && state.phase !== 'paused') return 0;
    const package_ = await findPackage(tx, state.tenantId, state.packageId);
    if (!package_) return 0;
    const facts = () =>
      [
        state.eligible,
        state.scheduled,
        state.removed,
        state.schedulingDue,
        state.coveredCount,
        state.coveredRank?.toString('hex'),
      ].join();
    const before = facts();
    const now = new Date(this.clock.now());
    if (lacksSignature(profile.otaPolicy?.requireSignature, package_)) {
      if (holdForSignature(state, now)) await saveRollout(tx, state, this.clock, 'paused');
      return 0;
    }
    const cohort = await readCohort(tx, state.tenantId, profile, package_, state.rolloutId);
    await takeOutDeparted(tx, state, cohort.departed);
    state.eligible = cohort.devices.length;
    const paused = pauseIfExceeded(state, now);
    const left = state.phase === 'active' ? await scheduleDevices(tx, state, cohort, package_, now) : 0;
    if (paused || before !== facts()) await saveRollout(tx, state, this.clock, paused);
    return left;
  }

  async remove(meta: ObjectMeta, _detach: boolean): Promise<Refusal | undefined> {
    const transaction = async (tx: Transaction): Promise<void> => {
      const { rows } = await tx.query<{ rollout_id: string }>(
        `SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND phase <> 'completed'`,
        [meta.tenantId, meta.namespace, meta.name],
      );
      for (const row of rows) {
        const state = await lockRollout(tx, meta.tenantId, row.rollout_id);
        await cancelUndelivered(tx, meta.tenantId, row.rollout_id);
        await unassignUndelivered(tx, meta.tenantId, row.rollout_id);
        await saveRollout(tx, state, this.clock, complete(state, 'cancelled'));
      }
    };
    await retryConflicts(() => this.database.tenant(meta.tenantId, transaction));
    return undefined;
  }
}

/** Puts right what names a rollout and never changes, should somebody have written it. */
async function restoreIdentity(tx: Transaction, meta: ObjectMeta, spec: OtaRolloutSpec, id: string): Promise<void> {
  const { tenantId, name, namespace } = meta;
  await updateIdentity(tx, {
    tenantId,
    rolloutId: id,
    name,
    namespace,
    displayName: meta.displayName || name,
    packageId: namedId(tenantId, 'package', spec.packageName),
    profileId: namedId(tenantId, 'profile', spec.profileName),
  });
}

/** Returns the rollback package that a manifest names. Throws the refusal when it cannot take an update's place. */
async function resolveRollback(
  tx: Transaction,
  tenantId: string,
  name: string,
  update: PackageRow | undefined,
  profile: ProfileFacts | undefined,
): Promise<PackageRow> {
  const rollback = await findPackage(tx, tenantId, namedId(tenantId, 'package', name), 'FOR SHARE');
  if (!rollback) throw new RefusalError('ReferenceNotFound', `rollbackPackageRef: OtaPackage ${name} not found`);
  requireAvailable('rollbackPackageRef', rollback);
  if (update && rollback.type !== update.type) {
    throw new RefusalError('InvalidSpec', 'rollbackPackageRef: the package must be of the same type as the update');
  }
  requireDeviceType('rollbackPackageRef', rollback, profile);
  return rollback;
}

/** Refuses a package for devices of another type than the profile's. */
function requireDeviceType(field: string, package_: PackageRow, profile: ProfileFacts | undefined): void {
  const deviceType = package_.compatibility.device_type ?? '';
  if (!profile || deviceType === '' || deviceType === profile.type) return;
  throw new RefusalError(
    'InvalidSpec',
    `${field}: the package is for devices of type ${deviceType}, not ${profile.type}`,
  );
}

/** Refuses a package that lacks the signature that the profile requires. */
function requireSigned(field: string, package_: PackageRow, profile: ProfileFacts | undefined): void {
  if (!lacksSignature(profile?.otaPolicy?.requireSignature, package_)) return;
  throw new RefusalError('SignatureRequired', `${field}: the profile requires a package with a verified signature`);
}

function requireAvailable(field: string, package_: PackageRow): void {
  if (package_.status === 'available' || package_.status === 'deprecated') return;
  if (package_.status === 'rejected')
    throw new RefusalError('InvalidSpec', `${field}: the package was rejected: ${package_.message}`);
  throw new RefusalError('ReferenceNotReady', `${field}: the package is ${package_.status}, not available`);
}

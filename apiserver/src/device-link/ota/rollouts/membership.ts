// Keeps rollouts consistent with the fleet: a change of a device's membership updates the rollout in the same transaction,
// pauses it if that crosses the threshold, and notifies the operator. The cost does not grow with the fleet, because only the
// changed device is judged, before and after its change.
import { notifyChanged } from '../../../control/changes.ts';
import type { FleetChange, FleetFacts, MembershipListener } from '../../../device-registry/devices/fleet-changes.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { dropAttributes } from '../../attributes/attribute-store.ts';
import { cancelCommandsOf, finishRolloutCommands } from '../../commands/commands.ts';
import {
  dropAssignments,
  listOverrideTypes,
  unassign,
  unassignFormerProfiles,
} from '../assignments/assignment-store.ts';
import { findPackage } from '../packages/package-store.ts';
import { isUntrusted } from '../packages/signature.ts';
import {
  type Departure,
  departure,
  isEligible,
  mayConcern,
  type Membership,
  type Standing,
} from './decisions/membership-change.ts';
import {
  beginCohort,
  countRemoval,
  holdForSignature,
  isRunning,
  pauseIfExceeded,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { addNewcomers, addToCohort, type CohortEntry, removeFromCohort } from './stores/cohort-store.ts';
import {
  findConcerned,
  type FoundRollout,
  listActivePackages,
  listRunningPackages,
} from './stores/membership-store.ts';
import { markLeft, readRows, removeRolloutDevices, type RolloutDeviceRow } from './stores/rollout-device-store.ts';
import { lockProfileRollouts, lockRollouts, saveRollout, wakeRolloutWork } from './stores/rollout-store.ts';
import { enroll, placeOf } from './work/scheduling.ts';

interface StandingChange {
  readonly before?: Standing | undefined;
  readonly after?: Standing | undefined;
}

/** Error in the row of a device that has left. */
const departureTexts: Record<Exclude<Departure, 'deleted'>, string> = {
  moved: 'left the rollout: the device got another profile',
  overridden: 'left the rollout: the device got an assignment of its own',
};

/** Applies changes of devices to the rollouts that have not completed. */
export class RolloutMembership implements MembershipListener {
  private readonly clock: Clock;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  async devicesChanged(tx: Transaction, tenantId: string, changes: readonly FleetChange[]): Promise<void> {
    const real = changes.filter(({ before, after }) => !before || !after || differs(before, after));
    if (real.length === 0) return;
    const existing = real.flatMap(({ before }) => before?.deviceId ?? []);
    const deleted = real.flatMap(({ before, after }) => (before && !after ? [before.deviceId] : []));
    const [found, overrides] = await Promise.all([
      findConcerned(tx, tenantId, real),
      existing.length > 0 ? listOverrideTypes(tx, tenantId, existing) : new Map<string, 'fw' | 'sw'>(),
    ]);
    const standing = (device: FleetFacts | undefined): Standing | undefined =>
      device && { ...device, override: overrides.get(device.deviceId) };
    const standings = real.map(({ before, after }) => ({ before: standing(before), after: standing(after) }));
    await this.apply(tx, tenantId, found, standings);
    // Below the locks of the rollouts: a rollback, which has its rollout locked, writes assignments and commands too.
    if (deleted.length > 0) {
      await Promise.all([
        dropAssignments(tx, tenantId, deleted),
        cancelCommandsOf(tx, tenantId, deleted),
        dropAttributes(tx, tenantId, deleted),
      ]);
    }
    const moved = real.flatMap(({ before, after }) =>
      before && after && before.profileId !== after.profileId ? [after] : [],
    );
    if (moved.length > 0) await unassignFormerProfiles(tx, tenantId, moved);
  }

  /** Handles a device that has got or lost its own assignment. Its row is locked by the transaction. */
  async overrideChanged(
    tx: Transaction,
    tenantId: string,
    device: FleetFacts,
    before: Standing['override'],
    after: Standing['override'],
  ): Promise<void> {
    if (before === after) return;
    const found = await findConcerned(tx, tenantId, [{ before: device, after: device }]);
    const change = { before: { ...device, override: before }, after: { ...device, override: after } };
    await this.apply(tx, tenantId, found, [change]);
  }

  async profileChanged(
    tx: Transaction,
    tenantId: string,
    profileId: string,
    policy: { readonly requireSignature: boolean },
  ): Promise<void> {
    // Changes of devices that were judged by the former profile commit first.
    await lockProfileRollouts(tx, tenantId, profileId);
    const rows = await listRunningPackages(tx, tenantId, profileId);
    if (rows.length === 0) return;
    const packages = new Map(rows.map((row) => [row.rollout_id, row]));
    for (const state of await lockRollouts(tx, tenantId, [...packages.keys()])) {
      // Its device type may have changed, and with it who is eligible.
      beginCohort(state);
      const held =
        isUntrusted(policy.requireSignature, packages.get(state.rolloutId)!) &&
        holdForSignature(state, new Date(this.clock.now()));
      await saveRollout(tx, state, this.clock, held ? 'paused' : undefined);
    }
  }

  /** Pauses active rollouts whose package is no longer signed by a trusted key, unless it never stated a signature and needs none. */
  async signingKeysChanged(tx: Transaction, tenantId: string): Promise<void> {
    const rows = await listActivePackages(tx, tenantId);
    const untrusted = rows.filter((row) => isUntrusted(row.signature_required, row)).map((row) => row.rollout_id);
    if (untrusted.length === 0) return;
    for (const state of await lockRollouts(tx, tenantId, untrusted)) {
      if (holdForSignature(state, new Date(this.clock.now()))) await saveRollout(tx, state, this.clock, 'paused');
    }
  }

  private async apply(
    tx: Transaction,
    tenantId: string,
    found: ReadonlyMap<string, FoundRollout>,
    changes: readonly StandingChange[],
  ): Promise<void> {
    const concerned = [...found].filter(([, rollout]) =>
      changes.some(({ before, after }) => mayConcern(rollout, before, after)),
    );
    if (concerned.length === 0) return;
    if (changes.every(({ before }) => !before)) {
      await countIn(
        tx,
        tenantId,
        concerned,
        changes.flatMap(({ after }) => after ?? []),
      );
      return;
    }
    const rolloutIds = concerned.map(([id]) => id);
    const deviceIds = changes.map(({ before, after }) => (before ?? after)!.deviceId);
    // Members are read once the rollouts are locked, because scheduling may add some until then.
    const [states, members] = await Promise.all([
      lockRollouts(tx, tenantId, rolloutIds),
      readRows(tx, tenantId, rolloutIds, deviceIds),
    ]);
    for (const state of states) {
      const rollout = { ...found.get(state.rolloutId)!, phase: state.phase };
      await this.change(tx, state, rollout, changes, members.get(state.rolloutId) ?? new Map());
    }
  }

  private async change(
    tx: Transaction,
    state: RolloutState,
    rollout: Membership,
    changes: readonly StandingChange[],
    members: ReadonlyMap<string, RolloutDeviceRow>,
  ): Promise<void> {
    const leaving: Leaving[] = [];
    const returning: string[] = [];
    const joined: CohortEntry[] = [];
    const left: string[] = [];
    for (const { before, after } of changes) {
      const { deviceId } = (before ?? after)!;
      const known = members.get(deviceId);
      const row = known?.has_left ? undefined : known;
      const why = row && departure(rollout, before, after);
      if (row && why) leaving.push({ row, why });
      const was = isEligible(rollout, before, row !== undefined);
      const is = isEligible(rollout, after, row !== undefined && !why);
      if (was && !is) left.push(deviceId);
      if (!was && is) {
        // A device that was scheduled before it got its own assignment is scheduled again at once without it.
        const returns = known && before?.override === rollout.packageType && state.phase === 'active';
        if (returns) returning.push(deviceId);
        joined.push({ deviceId, member: returns === true });
      }
    }
    if (joined.length + left.length + leaving.length === 0) return;
    const now = new Date(this.clock.now());
    await addToCohort(tx, state, joined);
    await removeFromCohort(tx, state, left);
    // Until the cohort is complete, the number from the creation is kept.
    state.eligible = state.cohortReady ? state.cohortCount : Math.max(0, state.eligible + joined.length - left.length);
    countOut(state, leaving);
    const package_ = returning.length > 0 ? await findPackage(tx, state.tenantId, state.packageId) : undefined;
    if (package_) await enroll(tx, state, { joining: [], returning }, package_, now);
    const paused = pauseIfExceeded(state, now);
    await Promise.all([writeOut(tx, state, leaving), saveRollout(tx, state, this.clock, paused)]);
  }
}

const differs = (before: FleetFacts, after: FleetFacts): boolean =>
  before.profileId !== after.profileId ||
  before.hardwareId !== after.hardwareId ||
  before.firmwareVersion !== after.firmwareVersion ||
  before.softwareVersion !== after.softwareVersion;

interface Leaving {
  readonly row: RolloutDeviceRow;
  readonly why: Departure;
}

/** Removes members from the counts of a locked rollout. */
function countOut(state: RolloutState, leaving: readonly Leaving[]): void {
  for (const { row, why } of leaving) {
    countRemoval(state, row.state, placeOf(state, row), row.rolling_back);
    // A deleted device is not in the rollout's list either.
    if (why === 'deleted') continue;
    state.changedDevices.push({ ...row, state: 'skipped', rolling_back: false, error: departureTexts[why] });
  }
}

/** Removes members from a locked rollout: their rows, commands and assignments. */
async function writeOut(tx: Transaction, state: RolloutState, leaving: readonly Leaving[]): Promise<void> {
  if (leaving.length === 0) return;
  const { tenantId, rolloutId } = state;
  const idsOf = (...reasons: Departure[]) =>
    leaving.flatMap(({ row, why }) => (reasons.includes(why) ? [row.device_id] : []));
  const running = leaving.flatMap(({ row }) => (isRunning(row.state) ? [row.correlation_id] : []));
  await Promise.all([
    removeRolloutDevices(tx, tenantId, rolloutId, idsOf('deleted')),
    markLeft(tx, tenantId, rolloutId, idsOf('moved'), departureTexts.moved),
    markLeft(tx, tenantId, rolloutId, idsOf('overridden'), departureTexts.overridden),
    running.length > 0 && finishRolloutCommands(tx, tenantId, running, 'cancelled'),
    unassign(tx, tenantId, idsOf('deleted', 'moved', 'overridden'), rolloutId),
  ]);
}

/** Counts new devices as eligible for rollouts. They are members of none and so change nothing else. */
async function countIn(
  tx: Transaction,
  tenantId: string,
  rollouts: readonly (readonly [string, FoundRollout])[],
  devices: readonly Standing[],
): Promise<void> {
  const newcomers = rollouts.map(([rolloutId, rollout]) => ({
    rolloutId,
    packageId: rollout.target.packageId,
    deviceIds: devices.filter((device) => isEligible(rollout, device, false)).map(({ deviceId }) => deviceId),
  }));
  wakeRolloutWork(tx);
  await Promise.all([
    addNewcomers(tx, tenantId, newcomers),
    ...rollouts.map(([, { namespace, name }]) => notifyChanged(tx, 'OtaRollout', tenantId, namespace, name)),
  ]);
}

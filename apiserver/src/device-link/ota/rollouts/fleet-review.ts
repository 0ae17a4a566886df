// Compares a rollout with its fleet.
import type { Clock } from '../../../platform/clock.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import type { ProfileFacts } from '../../../policies/profile-reader.ts';
import { findPackage } from '../packages/package-store.ts';
import { lacksSignature } from '../packages/signature-policy.ts';
import { takeOutDeparted } from './membership.ts';
import { holdForSignature, pauseIfExceeded, type RolloutState } from './rollout-state.ts';
import { saveRollout } from './rollout-store.ts';
import { readCohort, scheduleDevices } from './scheduling.ts';

/**
 * Counts the eligible devices of a running rollout again, removes members that are gone, pauses the rollout if that crosses the
 * threshold and, while it is active, schedules one transaction's worth of devices. Returns how many devices are left to
 * schedule.
 */
export async function reviewFleet(
  tx: Transaction,
  state: RolloutState,
  profile: ProfileFacts,
  clock: Clock,
): Promise<number> {
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
  const now = new Date(clock.now());
  if (lacksSignature(profile.otaPolicy?.requireSignature, package_)) {
    if (holdForSignature(state, now)) await saveRollout(tx, state, clock, 'paused');
    return 0;
  }
  const cohort = await readCohort(tx, state.tenantId, profile, package_, state.rolloutId);
  await takeOutDeparted(tx, state, cohort.departed);
  state.eligible = cohort.devices.length;
  const paused = pauseIfExceeded(state, now);
  const left = state.phase === 'active' ? await scheduleDevices(tx, state, cohort, package_, now) : 0;
  if (paused || before !== facts()) await saveRollout(tx, state, clock, paused);
  return left;
}

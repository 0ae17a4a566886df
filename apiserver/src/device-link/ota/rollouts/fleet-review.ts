// Compares a rollout with its fleet.
import type { Clock } from '../../../platform/clock.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import type { ProfileFacts } from '../../../policies/profile-reader.ts';
import { findPackage } from '../packages/package-store.ts';
import { lacksSignature } from '../packages/signature.ts';
import { takeOutDeparted } from './membership.ts';
import { holdForSignature, pauseIfExceeded, type RolloutState } from './rollout-state.ts';
import { saveIfChanged, saveRollout, snapshot } from './rollout-store.ts';
import { readCohort, scheduleDevices } from './scheduling.ts';

/**
 * Counts the eligible devices of a locked, running rollout again, takes out members that are gone, pauses the rollout if that
 * crosses the threshold and, while it is active, schedules one transaction's worth of devices.
 */
export async function reviewFleet(
  tx: Transaction,
  state: RolloutState,
  profile: ProfileFacts,
  clock: Clock,
): Promise<void> {
  if (state.phase !== 'active' && state.phase !== 'paused') return;
  const package_ = await findPackage(tx, state.tenantId, state.packageId);
  if (!package_) return;
  const now = new Date(clock.now());
  if (lacksSignature(profile.otaPolicy?.requireSignature, package_)) {
    if (holdForSignature(state, now)) await saveRollout(tx, state, clock, 'paused');
    return;
  }
  const before = snapshot(state);
  const cohort = await readCohort(tx, state.tenantId, profile, package_, state.rolloutId);
  await takeOutDeparted(tx, state, cohort.departed);
  state.eligible = cohort.devices.length;
  const paused = pauseIfExceeded(state, now);
  if (state.phase === 'active') await scheduleDevices(tx, state, cohort, package_, now);
  await saveIfChanged(tx, state, before, clock, paused);
}

// Continues the scheduling of an active rollout, a page at a time.
import type { Clock } from '../../../../platform/clock.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import type { ProfileFacts } from '../../../../policies/profile-reader.ts';
import { findPackage } from '../../packages/package-store.ts';
import { isUntrusted } from '../../packages/signature.ts';
import { holdForSignature, type RolloutState } from '../decisions/rollout-state.ts';
import { saveIfChanged, saveRollout, snapshot } from '../stores/rollout-store.ts';
import { fillCohort } from './cohort-fill.ts';
import { scheduleDevices } from './scheduling.ts';

/**
 * Continues the cohort of a locked, active rollout until it is complete, and then schedules from it: one page, or 500 devices. A
 * rollout of an untrusted package pauses instead. Saves the rollout if this has changed it.
 */
export async function scheduleNext(
  tx: Transaction,
  state: RolloutState,
  profile: ProfileFacts,
  clock: Clock,
): Promise<void> {
  const now = new Date(clock.now());
  const package_ = await findPackage(tx, state.tenantId, state.packageId);
  if (!package_) return;
  if (isUntrusted(profile.otaPolicy?.requireSignature, package_)) {
    if (holdForSignature(state, now)) await saveRollout(tx, state, clock, 'paused');
    return;
  }
  const before = snapshot(state);
  if (state.cohortReady) await scheduleDevices(tx, state, package_, now);
  else await fillCohort(tx, state, profile, package_);
  await saveIfChanged(tx, state, before, clock);
}

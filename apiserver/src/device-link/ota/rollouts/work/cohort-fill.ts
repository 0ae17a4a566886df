// Fills the cohort of a rollout: looks at the devices of its profile page by page, in order of their ids. Changes of devices keep
// the cohort meanwhile, under the same lock, so that a page may find a device in it already.
import { listFleet } from '../../../../device-registry/devices/devices.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { listOverrideTypes } from '../../assignments/assignment-store.ts';
import type { PackageRow } from '../../packages/package-store.ts';
import { candidateOf, exclusion, targetOf } from '../decisions/cohort.ts';
import type { RolloutState } from '../decisions/rollout-state.ts';
import { addToCohort, removeFromCohort } from '../stores/cohort-store.ts';
import { membersAmong } from '../stores/rollout-device-store.ts';

/** Maximum devices that one transaction looks at. */
const devicesPerPage = 1000;

/**
 * Looks at the next page of devices and adds those that are eligible to the cohort of a locked rollout, removes those that no
 * longer are. After the last page the cohort is ready. The caller saves the state.
 */
export async function fillCohort(
  tx: Transaction,
  state: RolloutState,
  profile: { readonly profileId: string; readonly type: string },
  package_: PackageRow,
): Promise<void> {
  const { tenantId, rolloutId } = state;
  const page = await listFleet(tx, tenantId, profile.profileId, state.cohortCursor, devicesPerPage);
  const deviceIds = page.map(({ deviceId }) => deviceId);
  const [overrides, members] = await Promise.all([
    listOverrideTypes(tx, tenantId, deviceIds),
    membersAmong(tx, tenantId, rolloutId, deviceIds),
  ]);
  const target = targetOf(package_);
  const judged = page.map((device) => {
    const member = members.has(device.deviceId);
    const overridden = overrides.get(device.deviceId) === package_.type;
    const candidate = candidateOf(device, target, package_.type, { overridden, member });
    return { deviceId: device.deviceId, member, isEligible: exclusion(candidate, target, profile.type) === undefined };
  });
  await addToCohort(
    tx,
    state,
    judged.filter(({ isEligible }) => isEligible),
  );
  await removeFromCohort(
    tx,
    state,
    judged.flatMap(({ deviceId, isEligible }) => (isEligible ? [] : [deviceId])),
  );
  state.cohortCursor = deviceIds.at(-1);
  if (page.length < devicesPerPage) {
    state.cohortReady = true;
    state.cohortCursor = undefined;
    state.eligible = state.cohortCount;
  }
}

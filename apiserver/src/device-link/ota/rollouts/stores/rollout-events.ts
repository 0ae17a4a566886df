// The events of rollouts in the outbox: those of a rollout itself, and those of its devices, many in one event.
import type { Clock } from '../../../../platform/clock.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { enqueueAll, type OutboxEvent } from '../../../../platform/events/outbox.ts';
import { rolloutDevicesSubject, rolloutSubject } from '../../../../platform/events/subjects.ts';
import { versionsOfPackages } from '../../packages/package-store.ts';
import { reasonNames } from '../decisions/pause-decision.ts';
import type { ChangedDevice, RolloutEvent, RolloutState } from '../decisions/rollout-state.ts';

/** Maximum devices in an event, so that it stays well below the size that brokers accept. */
export const devicesPerEvent = 100;

/** Maximum characters of a device's error in an event. The list of the rollout's devices has all of it. */
const maxErrorLength = 256;

/**
 * Publishes the devices that the transaction has changed, and then these events of the rollout. The rollout is locked, so events
 * follow one another as the changes did.
 */
export async function publishChanges(
  tx: Transaction,
  state: RolloutState,
  events: readonly (RolloutEvent | undefined)[],
  clock: Clock,
): Promise<void> {
  const ofDevices = await deviceEvents(tx, state);
  const ofRollout = events.flatMap((event) => (event ? [rolloutEvent(state, event)] : []));
  await enqueueAll(tx, [...ofDevices, ...ofRollout], clock);
}

/** Returns the events of the devices that have changed, and forgets the devices. */
async function deviceEvents(tx: Transaction, state: RolloutState): Promise<OutboxEvent[]> {
  const changed = state.changedDevices.splice(0);
  if (changed.length === 0) return [];
  const { packageId, rollbackPackageId } = state;
  const packageOf = (device: ChangedDevice) => (device.rolling_back ? rollbackPackageId! : packageId);
  const versions = await versionsOfPackages(tx, state.tenantId, [...new Set(changed.map(packageOf))]);
  const devices = changed.map((device) => ({
    device_id: device.device_id,
    state: device.state,
    rolling_back: device.rolling_back,
    attempts: device.attempts,
    version: versions.get(packageOf(device)) ?? '',
    firmware_version: device.firmware_version,
    error: [...device.error.slice(0, 2 * maxErrorLength)].slice(0, maxErrorLength).join(''),
  }));
  const pages = Array.from({ length: Math.ceil(devices.length / devicesPerEvent) }, (_, page) =>
    devices.slice(page * devicesPerEvent, (page + 1) * devicesPerEvent),
  );
  return pages.map((page) => ({
    ...eventOf(state, rolloutDevicesSubject(state.tenantId, state.rolloutId)),
    data: { ...identityOf(state), devices: page },
  }));
}

const eventOf = (state: RolloutState, subject: string) => ({
  tenantId: state.tenantId,
  subject,
  resource: state.rolloutId,
});

const identityOf = (state: RolloutState) => ({
  rollout_id: state.rolloutId,
  name: state.displayName,
  package_id: state.packageId,
  target_profile_id: state.profileId,
});

const rolloutEvent = (state: RolloutState, event: RolloutEvent): OutboxEvent => ({
  ...eventOf(state, rolloutSubject(event, state.tenantId, state.rolloutId)),
  data: {
    ...identityOf(state),
    status: state.phase,
    outcome: state.outcome,
    scheduled: state.scheduled,
    succeeded: state.succeeded,
    failed: state.failed,
    timed_out: state.timedOut,
    failure_threshold_percent: state.spec.failureThresholdPercent,
    pause_reasons: state.pauseConditions.map(({ reason }) => reasonNames[reason]),
  },
});

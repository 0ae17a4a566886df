// Converts rollouts to what the operator and REST get.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate, timestampFromMs } from '@bufbuild/protobuf/wkt';
import type { OtaRolloutObservedSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { Window } from '@kellet/proto/es/kellet/v1/common_pb';
import { Rollout_Outcome, Rollout_PauseReason, Rollout_Status, RolloutSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { inManifest } from '../../../control/field-names.ts';
import { Pauses } from '../../../platform/concurrency/pauses.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { insideWindow, nextChange } from './decisions/delivery-window.ts';
import { failurePercent, reasonNames } from './decisions/pause-decision.ts';
import {
  coveredNow,
  describe,
  effectivePercent,
  isSchedulingDue,
  isStageFinished,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { nextDeadline } from './stores/rollout-device-store.ts';
import { windowsOf } from './stores/rollout-store.ts';

const countsOf = (state: RolloutState) => ({
  eligible: state.eligible,
  scheduled: state.scheduled,
  sent: state.sent,
  succeeded: state.succeeded,
  failed: state.failed,
  timedOut: state.timedOut,
  skipped: state.skipped,
  removed: state.removed,
});

/** Returns when the window of a rollout opens, if it is closed. */
const closedUntil = (window: Window | undefined, now: Date): Date | undefined =>
  window && !insideWindow(window, now) ? nextChange(window, now) : undefined;

/** Returns everything the operator decides on, with the next timeout and the window, which are not in the row. */
export async function observe(
  tx: Transaction,
  state: RolloutState,
  now: Date,
): Promise<MessageInitShape<typeof OtaRolloutObservedSchema>> {
  const nextTimeoutAt =
    state.phase === 'completed' ? undefined : await nextDeadline(tx, state.tenantId, state.rolloutId);
  const covered = coveredNow(state);
  const window = (await windowsOf(tx, state.tenantId, [state])).get(state.rolloutId);
  const windowChangesAt = window && nextChange(window, now);
  return {
    phase: state.phase,
    outcome: state.outcome,
    message: inManifest('OtaRollout', describe(state, closedUntil(window, now))),
    counts: countsOf(state),
    failurePercent: failurePercent(state.scheduled, state.failed + state.timedOut),
    effectivePercent: effectivePercent(state),
    pauseConditions: state.pauseConditions.map((condition) => ({
      reason: condition.reason,
      startTime: timestampFromMs(Date.parse(condition.start_time)),
      by: condition.by,
    })),
    expandedToPercent: state.expandedToPercent,
    acknowledgedFailures: state.acknowledgedFailures,
    loweredFromPercent: state.loweredFromPercent,
    rollbackRequestedAt: state.rollbackRequestedAt && timestampFromDate(state.rollbackRequestedAt),
    rollbackRequestedBy: state.rollbackRequestedBy,
    revision: state.revision,
    covered,
    stepIndex: state.stepIndex,
    stageFinished: isStageFinished(state),
    lastTerminalAt: state.lastTerminalAt && timestampFromDate(state.lastTerminalAt),
    nextStepApproved: state.approvedStepIndex > state.stepIndex,
    // Every device that is rolling back has a deadline: without one none is left, whatever an earlier release has counted.
    rollbackPending: nextTimeoutAt || state.pendingWork === 'turn_back' ? Math.max(1, state.rollbackPending) : 0,
    schedulingDue: isSchedulingDue(state),
    now: timestampFromDate(now),
    nextTimeoutAt: nextTimeoutAt && timestampFromDate(nextTimeoutAt),
    windowChangesAt: windowChangesAt && timestampFromDate(windowChangesAt),
    createdAt: timestampFromDate(state.createdAt),
    scheduledInitially: state.scheduledInitially,
  };
}

/** Converts rollouts to the public resource. */
export async function toRollouts(
  tx: Transaction,
  tenantId: string,
  states: readonly RolloutState[],
  now: Date,
): Promise<MessageInitShape<typeof RolloutSchema>[]> {
  const windows = await windowsOf(tx, tenantId, states);
  const rollouts: MessageInitShape<typeof RolloutSchema>[] = [];
  const pauses = new Pauses();
  for (const state of states) {
    // When a window opens takes a fraction of a millisecond to find, in the time zone of each.
    rollouts.push(toRollout(state, closedUntil(windows.get(state.rolloutId), now)));
    await pauses.next();
  }
  return rollouts;
}

function toRollout(state: RolloutState, opensAt: Date | undefined): MessageInitShape<typeof RolloutSchema> {
  const { $typeName: _request, ...spec } = state.spec;
  return create(RolloutSchema, {
    ...spec,
    rolloutId: state.rolloutId,
    name: state.displayName,
    packageId: state.packageId,
    targetProfileId: state.profileId,
    rollbackPackageId: state.rollbackPackageId ?? '',
    status: Rollout_Status[state.phase],
    scheduledCount: state.scheduledInitially,
    outcome: state.outcome === '' ? undefined : Rollout_Outcome[state.outcome],
    message: describe(state, opensAt),
    effectivePercent: effectivePercent(state),
    counts: countsOf(state),
    failurePercent: failurePercent(state.scheduled, state.failed + state.timedOut),
    pauseReasons: [
      ...(state.spec.paused && state.phase === 'paused' ? [Rollout_PauseReason.operator_pause] : []),
      ...state.pauseConditions.map((condition) => Rollout_PauseReason[reasonNames[condition.reason]]),
    ].filter((reason, index, all) => all.indexOf(reason) === index),
    createdAt: timestampFromDate(state.createdAt),
    updatedAt: timestampFromDate(state.updatedAt),
  });
}

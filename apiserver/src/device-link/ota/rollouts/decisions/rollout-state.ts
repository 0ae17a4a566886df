// The state of a rollout and its transitions: pure functions that change the given state and return the event they cause. Callers
// hold the row's lock and save the state afterwards (rollout-store.ts).
import { failedPrecondition, invalidArgument } from '../../../../platform/errors.ts';
import { coverage } from './cohort.ts';
import { exceedsThreshold, type PauseCondition, type PauseReason, type Phase, phaseOf } from './pause-decision.ts';
import type { RolloutSpec } from './rollout-spec.ts';

/** The row of a rollout. */
export interface RolloutState {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly name: string;
  readonly namespace: string;
  readonly displayName: string;
  readonly packageId: string;
  readonly profileId: string;
  rollbackPackageId: string | undefined;
  spec: RolloutSpec;
  phase: Phase;
  outcome: '' | 'succeeded' | 'rolled_back' | 'cancelled';
  pauseConditions: PauseCondition[];
  expandedToPercent: number;
  /** The share that the manifest covered before it was lowered, while it covers less; 0: it was not lowered. */
  loweredFromPercent: number;
  /** The custom resource that the rollout belongs to, or belonged to when it ended; empty: unknown. */
  resourceUid: string;
  acknowledgedFailures: number;
  acknowledgedScheduled: number;
  rollbackRequestedAt: Date | undefined;
  rollbackRequestedBy: string;
  stepIndex: number;
  approvedStepIndex: number;
  eligible: number;
  scheduledInitially: number;
  scheduled: number;
  sent: number;
  succeeded: number;
  failed: number;
  timedOut: number;
  skipped: number;
  removed: number;
  stageScheduled: number;
  stageFailed: number;
  lastTerminalAt: Date | undefined;
  /** When the next command to be created becomes due. */
  nextSendAt: Date | undefined;
  /** When the next due command may be delivered. */
  nextHandOutAt: Date | undefined;
  /** Devices that are to go back and have not reported the rollback package, in time or at all. */
  rollbackPending: number;
  /** The cohort is complete: every eligible device is in it, and no other. */
  cohortReady: boolean;
  /** Until then, the last device that was looked at. */
  cohortCursor: string | undefined;
  /** Devices in the cohort. */
  cohortCount: number;
  /** A device of the cohort joined before the last covered one and may not be scheduled yet. */
  schedulingDue: boolean;
  /** How many devices of the cohort are covered so far; all of them were scheduled but those that joined late. */
  coveredCount: number;
  /** Place of the last of them in the cohort's order; undefined: there is none. */
  coveredRank: Buffer | undefined;
  /** What remains to be done for many devices, in small transactions (rollout-work.ts). */
  pendingWork: '' | 'retry' | 'turn_back' | 'withdraw' | 'drop_cohort';
  /** The last device for which it was done. */
  workCursor: string | undefined;
  /** How often the rollout was resumed. Failures of before the last time are acknowledged. */
  resumes: number;
  /** Devices whose state this transaction has changed, for the event that saving the rollout publishes. */
  readonly changedDevices: ChangedDevice[];
  revision: bigint;
  createdAt: Date;
  updatedAt: Date;
}

/** The states of a device in a rollout. */
export const deviceStates = [
  'scheduled',
  'sent',
  'downloading',
  'successful',
  'failure',
  'timed_out',
  'skipped',
  'rolled_back',
] as const;

/** A state of a device in a rollout. */
export type DeviceState = (typeof deviceStates)[number];

/** A device whose state in the rollout has changed, as an event shows it. */
export interface ChangedDevice {
  readonly device_id: string;
  readonly state: DeviceState;
  readonly rolling_back: boolean;
  readonly attempts: number;
  readonly firmware_version: string;
  readonly error: string;
}

/** The event that a transition causes. */
export type RolloutEvent = 'started' | 'paused' | 'resumed' | 'rolling_back' | 'completed';

/** Returns the share of the fleet that the manifest covers, with the steps that have begun. */
function manifestPercent({ spec, stepIndex }: RolloutState): number {
  return Math.max(spec.canaryPercent, spec.steps[stepIndex]?.percent ?? 0);
}

/** Returns the share of the fleet that the rollout covers now: the maximum of manifest, steps and raises. */
export function effectivePercent(state: RolloutState): number {
  return Math.min(100, Math.max(manifestPercent(state), state.expandedToPercent));
}

/**
 * Takes a changed manifest. Devices are never unscheduled: what they were scheduled for stays covered if the manifest covers less
 * than before.
 */
export function changeSpec(state: RolloutState, spec: RolloutSpec): void {
  const before = { effective: effectivePercent(state), manifest: manifestPercent(state) };
  state.spec = spec;
  const covers = manifestPercent(state);
  if (covers < before.manifest && state.scheduled > 0) {
    state.loweredFromPercent = Math.max(state.loweredFromPercent, before.manifest);
  }
  if (covers >= state.loweredFromPercent) state.loweredFromPercent = 0;
  const effective = effectivePercent(state);
  if (effective > before.effective) beginStage(state);
  if (effective < before.effective && state.scheduled > 0) state.expandedToPercent = before.effective;
  settlePhase(state);
}

/** Returns how many scheduled devices have neither reported, timed out nor been skipped. */
export function pendingDevices(state: RolloutState): number {
  return state.scheduled - state.succeeded - state.failed - state.timedOut - state.skipped;
}

/** Derives the phase; every transition ends with it. */
function settlePhase(state: RolloutState): void {
  state.phase = phaseOf({
    completed: state.outcome !== '',
    rollingBack: state.rollbackRequestedAt !== undefined,
    heldBySpec: state.spec.paused,
    pauseConditions: state.pauseConditions,
  });
}

/** Adds a pause reason unless it is already present. Reports whether it was added. */
export function addPauseCondition(state: RolloutState, reason: PauseReason, by: string, now: Date): boolean {
  if (state.pauseConditions.some((condition) => condition.reason === reason)) return false;
  state.pauseConditions.push({ reason, start_time: now.toISOString(), by });
  settlePhase(state);
  return true;
}

/** Pauses an active or paused rollout of an untrusted package (signature.ts). Reports whether this paused an active one. */
export function holdForSignature(state: RolloutState, now: Date): boolean {
  if (state.phase !== 'active' && state.phase !== 'paused') return false;
  const wasActive = state.phase === 'active';
  return addPauseCondition(state, 'SignatureRequired', 'kellet', now) && wasActive;
}

const dropPauseConditions = (state: RolloutState, reasons: readonly PauseReason[]): void => {
  state.pauseConditions = state.pauseConditions.filter((condition) => !reasons.includes(condition.reason));
};

/** An operator's pause. Throws FAILED_PRECONDITION when the rollout is rolling back or completed. */
export function pause(state: RolloutState, by: string, now: Date): void {
  refuseEnded(state, 'paused');
  addPauseCondition(state, 'OperatorPause', by, now);
}

/**
 * An operator's resume: acknowledges the failures so far, so that only later ones count towards the next pause, and may raise the
 * rollout. Throws FAILED_PRECONDITION while the manifest holds the rollout, if only an approval is missing, or if it has
 * ended.
 */
export function resume(state: RolloutState, percent: number | undefined): RolloutEvent | undefined {
  refuseEnded(state, 'resumed');
  if (state.spec.paused) throw failedPrecondition('the rollout is held by spec.paused of its manifest');
  const held = state.pauseConditions.some((condition) => condition.reason !== 'StepApproval');
  if (percent !== undefined) {
    refuseAwaiting(state, 'raise it');
    raiseTo(state, percent);
  }
  if (!held) refuseAwaiting(state, 'resume it');
  if (!held) return undefined;
  dropPauseConditions(state, ['OperatorPause', 'FailureThresholdExceeded', 'SignatureRequired']);
  state.acknowledgedFailures = state.failed + state.timedOut;
  state.acknowledgedScheduled = state.acknowledgedFailures;
  state.stageScheduled -= state.stageFailed;
  state.stageFailed = 0;
  state.resumes += 1;
  settlePhase(state);
  return 'resumed';
}

/** Raises an active rollout. Throws FAILED_PRECONDITION when it is paused, ended, or would be lowered. */
export function raise(state: RolloutState, percent: number): void {
  refuseEnded(state, 'raised');
  refuseAwaiting(state, 'raise it');
  if (state.phase === 'paused') {
    throw failedPrecondition('the rollout is paused: resume it, with canary_percent to raise it at the same time');
  }
  raiseTo(state, percent);
}

/** Refuses what only an approval can do: going on to the next step, or past it. */
function refuseAwaiting(state: RolloutState, what: string): void {
  if (!state.pauseConditions.some(({ reason }) => reason === 'StepApproval')) return;
  throw failedPrecondition(`the rollout waits for approval of its next step: approve that before you ${what}`);
}

function raiseTo(state: RolloutState, percent: number): void {
  if (percent < 1 || percent > 100) throw invalidArgument('canary_percent must be from 1 to 100');
  const current = effectivePercent(state);
  if (percent < current) {
    throw failedPrecondition(
      `canary_percent cannot be lowered from ${current} to ${percent}: devices are never unscheduled`,
    );
  }
  if (percent === current) return;
  state.expandedToPercent = percent;
  beginStage(state);
}

/** Begins the step of the manifest with this index. */
export function beginStep(state: RolloutState, index: number): void {
  const covered = effectivePercent(state);
  state.stepIndex = index;
  // A step that a raise has gone past covers nothing new: its devices stay the current stage's.
  if (effectivePercent(state) > covered) beginStage(state);
}

/** A new stage, by a step, a raise or a manifest that covers more: its share of failures is counted from nothing. */
function beginStage(state: RolloutState): void {
  state.stageScheduled = 0;
  state.stageFailed = 0;
}

/** Approves the next step. Throws FAILED_PRECONDITION if no approval is pending. */
export function approve(state: RolloutState): void {
  refuseEnded(state, 'approved');
  if (state.pauseConditions.some((condition) => condition.reason === 'StepApproval')) {
    state.approvedStepIndex = state.stepIndex + 1;
    dropPauseConditions(state, ['StepApproval']);
    settlePhase(state);
  } else if (state.approvedStepIndex !== state.stepIndex + 1) {
    throw failedPrecondition('the rollout waits for no approval');
  }
}

/** Requests that all failed devices are retried. Throws FAILED_PRECONDITION unless the rollout is active or paused. */
export function requestRetry(state: RolloutState): void {
  refuseUnlessUnderWay(state);
  state.pendingWork = 'retry';
  state.workCursor = undefined;
}

/** Throws FAILED_PRECONDITION unless the rollout is active or paused. */
export function refuseUnlessUnderWay({ phase }: RolloutState): void {
  if (phase !== 'active' && phase !== 'paused') {
    throw failedPrecondition(`the rollout is ${phase.replace('_', ' ')}`);
  }
}

/**
 * Requests the rollback. Throws FAILED_PRECONDITION without a rollback package or if the rollout is completed. Returns undefined if
 * it is already rolling back.
 */
export function requestRollback(state: RolloutState, by: string, now: Date): RolloutEvent | undefined {
  if (state.phase === 'rolling_back') return undefined;
  refuseEnded(state, 'rolled back');
  if (state.rollbackPackageId === undefined) throw failedPrecondition('the rollout has no rollback package');
  state.rollbackRequestedAt = now;
  state.rollbackRequestedBy = by;
  // It is no longer paused, and nothing can resume it.
  state.pauseConditions = [];
  state.pendingWork = 'turn_back';
  state.workCursor = undefined;
  settlePhase(state);
  return 'rolling_back';
}

/** Ends the rollout with an outcome. Devices that are still to be turned back are, after it has ended. */
export function complete(state: RolloutState, outcome: 'succeeded' | 'rolled_back' | 'cancelled'): RolloutEvent {
  state.outcome = outcome;
  state.pauseConditions = [];
  if (outcome !== 'rolled_back' || state.pendingWork !== 'turn_back') {
    state.pendingWork = outcome === 'cancelled' ? 'withdraw' : 'drop_cohort';
    state.workCursor = undefined;
  }
  settlePhase(state);
  return 'completed';
}

/** Ends the rollout because its resource is deleted. A rollback continues: devices must not be left with the update. */
export const abandon = (state: RolloutState): RolloutEvent =>
  complete(state, state.phase === 'rolling_back' ? 'rolled_back' : 'cancelled');

/** An operator's cancel: delivered updates may finish, nothing else is delivered. A rollback cannot be cancelled. */
export function cancel(state: RolloutState): RolloutEvent {
  refuseEnded(state, 'cancelled');
  return complete(state, 'cancelled');
}

function refuseEnded(state: RolloutState, what: string): void {
  if (state.phase === 'completed') throw failedPrecondition(`a completed rollout cannot be ${what}`);
  if (state.phase === 'rolling_back') throw failedPrecondition(`a rollout that is rolling back cannot be ${what}`);
}

/** The facts of a device's row, besides its state, that decide which counters it is in. */
export interface DevicePlace {
  readonly inCurrentStage: boolean;
  /** A resume has acknowledged its failure. */
  readonly acknowledged: boolean;
  /** It is counted as sent although it was skipped. */
  readonly wasSent: boolean;
}

/** The place of a device without a counted failure. */
export const noPlace: DevicePlace = { inCurrentStage: false, acknowledged: false, wasSent: false };

/** Moves one device between states in the counters. */
export function countMove(
  state: RolloutState,
  from: DeviceState,
  to: DeviceState,
  place: DevicePlace,
  now: Date,
): void {
  const wasUnsent = from === 'scheduled' || (from === 'skipped' && !place.wasSent);
  if (wasUnsent && to !== 'scheduled' && to !== 'skipped') state.sent += 1;
  count(state, from, -1);
  count(state, to, 1);
  if (isFailure(to) && !isFailure(from) && place.inCurrentStage) state.stageFailed += 1;
  if (isFailure(from) && !isFailure(to)) leaveFailures(state, place);
  if (to !== 'sent' && to !== 'downloading' && to !== 'scheduled') state.lastTerminalAt = now;
}

/** Reports whether a device in this state has yet to report. */
export const isRunning = (device: DeviceState): boolean =>
  device === 'scheduled' || device === 'sent' || device === 'downloading';

/** Reports whether a device in this state counts as failed. */
export const isFailure = (device: DeviceState): boolean => device === 'failure' || device === 'timed_out';

/** Reports whether the device failed before the last resume, so that its failure no longer counts. */
export const isAcknowledged = (
  state: RolloutState,
  row: { readonly state: DeviceState; readonly failed_in: number },
): boolean => isFailure(row.state) && row.failed_in < state.resumes;

function count(state: RolloutState, device: DeviceState, by: 1 | -1): void {
  if (device === 'successful') state.succeeded += by;
  else if (device === 'failure') state.failed += by;
  else if (device === 'timed_out') state.timedOut += by;
  else if (device === 'skipped') state.skipped += by;
}

/** A failed device is tried again, skipped or deleted: it leaves the counts that it is in, and hides no other's failure. */
function leaveFailures(state: RolloutState, { inCurrentStage, acknowledged }: DevicePlace): void {
  if (!acknowledged) {
    if (inCurrentStage) state.stageFailed -= 1;
    return;
  }
  state.acknowledgedFailures -= 1;
  state.acknowledgedScheduled -= 1;
  // The resume removed it from both counts of its stage; it is added to one of them again.
  if (inCurrentStage) state.stageScheduled += 1;
}

/** A device has gone back, or is no longer to. An earlier release counted silent and failed devices as gone back too. */
export function countReturn(state: RolloutState): void {
  state.rollbackPending = Math.max(0, state.rollbackPending - 1);
}

/**
 * Removes a device that leaves the rollout from every count. Counts of the update stay as they were when a rollback began, because
 * the rows of devices that are rolling back no longer hold the update's result.
 */
export function countRemoval(state: RolloutState, from: DeviceState, place: DevicePlace, rollingBack: boolean): void {
  if (rollingBack) {
    if (from !== 'rolled_back') countReturn(state);
    state.removed += 1;
    return;
  }
  count(state, from, -1);
  if (isFailure(from)) leaveFailures(state, place);
  state.scheduled -= 1;
  // A device that was skipped before its command reached it was never counted as sent.
  if (from === 'skipped' ? place.wasSent : from !== 'scheduled') state.sent -= 1;
  if (place.inCurrentStage) state.stageScheduled -= 1;
  state.removed += 1;
}

/** Pauses the rollout when its failures exceed the threshold. Called after every change of the counters. */
export function pauseIfExceeded(state: RolloutState, now: Date): RolloutEvent | undefined {
  if (state.phase !== 'active' && state.phase !== 'paused') return undefined;
  const exceeded = exceedsThreshold(
    {
      scheduled: state.scheduled,
      failures: state.failed + state.timedOut,
      stageScheduled: state.stageScheduled,
      stageFailures: state.stageFailed,
      acknowledgedFailures: state.acknowledgedFailures,
      acknowledgedScheduled: state.acknowledgedScheduled,
    },
    { thresholdPercent: state.spec.failureThresholdPercent, minFailures: state.spec.minFailures },
  );
  if (!exceeded) return undefined;
  return addPauseCondition(state, 'FailureThresholdExceeded', 'kellet', now) ? 'paused' : undefined;
}

/** Returns how many of the eligible devices the current share covers. */
export const coveredNow = (state: RolloutState): number => coverage(state.eligible, effectivePercent(state));

/** Reports whether a device that the current share covers may not be scheduled yet. */
export const isSchedulingDue = (state: RolloutState): boolean =>
  !state.cohortReady || state.schedulingDue || coveredNow(state) > state.coveredCount;

/** Reports whether devices of the rollout are to be scheduled, or looked at for that, now. */
export const awaitsScheduling = (state: RolloutState): boolean => state.phase === 'active' && isSchedulingDue(state);

/** Has the eligible devices determined again: what decides about all of them has changed. */
export function beginCohort(state: RolloutState): void {
  state.cohortReady = false;
  state.cohortCursor = undefined;
}

/** Reports whether every target device has succeeded. Skipped devices are no targets. Always false for an empty fleet. */
export function allSucceeded(state: RolloutState): boolean {
  return (
    effectivePercent(state) === 100 &&
    state.succeeded > 0 &&
    state.scheduled >= state.eligible &&
    !isSchedulingDue(state) &&
    state.succeeded + state.skipped === state.scheduled
  );
}

/** Reports whether a device has succeeded or failed with the package and was not skipped since. */
const hasResult = (state: RolloutState): boolean => state.succeeded + state.failed + state.timedOut > 0;

/**
 * Reports whether every device of the stages so far has ended, at least one of them with a result: until then a rollout
 * does not continue by itself.
 */
export const isStageFinished = (state: RolloutState): boolean =>
  state.scheduled >= coveredNow(state) && pendingDevices(state) === 0 && hasResult(state);

const devices = (count: number, kind = ''): string => `${count} ${kind}${count === 1 ? 'device' : 'devices'}`;
const have = (count: number): string => (count === 1 ? 'has' : 'have');

function describeSuccess(state: RolloutState): string {
  const failures = state.failed + state.timedOut;
  if (failures > 0)
    return `completed; ${failures} of ${devices(state.scheduled)} ${have(failures)} reported a failure since`;
  if (state.skipped > 0) return `${state.succeeded} of ${devices(state.scheduled)} succeeded; ${state.skipped} skipped`;
  return 'every target device succeeded';
}

function describeReturn({ rollbackPending: away }: RolloutState): string {
  if (away === 0) return 'rolled back';
  return `rolled back; ${devices(away)} ${have(away)} not reported the rollback package`;
}

function describeCancellation(state: RolloutState): string {
  const pending = pendingDevices(state);
  if (pending === 0) return 'cancelled';
  return `cancelled; the update is being withdrawn from ${devices(pending, 'more ')}`;
}

/** Returns a sentence on the rollout's progress. `closedUntil` is when its window opens, if it is closed. */
export function describe(state: RolloutState, closedUntil?: Date): string {
  const failures = state.failed + state.timedOut;
  if (state.phase === 'completed') {
    if (state.outcome === 'succeeded') return describeSuccess(state);
    return state.outcome === 'rolled_back' ? describeReturn(state) : describeCancellation(state);
  }
  if (state.phase === 'rolling_back') return 'sending the rollback package to every device that the update reached';
  const reasons = state.pauseConditions.map((condition) => condition.reason);
  if (reasons.includes('FailureThresholdExceeded')) {
    const { scheduled, stageFailed, stageScheduled, spec } = state;
    const more = `more than ${spec.failureThresholdPercent} %`;
    // Either share pauses; the message names one that is above the threshold.
    const isAbove = (failed: number, of: number): boolean => failed * 100 > spec.failureThresholdPercent * of;
    if (isAbove(failures, scheduled)) return `${failures} of ${devices(scheduled, 'scheduled ')} failed: ${more}`;
    if (isAbove(stageFailed, stageScheduled))
      return `${stageFailed} of ${devices(stageScheduled)} of this stage failed: ${more}`;
    // The failed devices are being retried, were skipped or have left since, or the threshold was raised.
    return 'the failure threshold was exceeded, but no longer is: resume to continue';
  }
  if (state.spec.paused) return 'held by spec.paused';
  if (reasons.includes('SignatureRequired')) return 'paused: the package has no signature by a trusted key';
  if (reasons.includes('OperatorPause')) return 'paused by an operator';
  if (reasons.includes('StepApproval')) return `waits for approval of step ${state.stepIndex + 2}`;
  if (state.eligible === 0) return 'no device is eligible';
  const pending = pendingDevices(state);
  if (pending > 0) {
    const closed = closedUntil ? `outside its window until ${closedUntil.toISOString().slice(0, 16)}Z: ` : '';
    return `${closed}${pending} of ${devices(state.scheduled, 'scheduled ')} ${have(pending)} not reported`;
  }
  if (failures > 0) return `${devices(failures)} failed: retry or skip ${failures === 1 ? 'it' : 'them'} to complete`;
  if (state.scheduled > 0 && !hasResult(state)) {
    const next = effectivePercent(state) < 100 ? 'raise canary_percent to continue, or cancel' : 'cancel the rollout';
    return `every scheduled device was skipped, so no result counts: ${next}`;
  }
  return `${state.succeeded} of ${devices(state.eligible, 'eligible ')} succeeded`;
}

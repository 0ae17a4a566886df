// Decides whether a rollout pauses, and its phase: with each report, in the same transaction.

/** Reasons for which a rollout is held. */
export type PauseReason = 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval' | 'SignatureRequired';

/** The reasons as REST and events name them. */
export const reasonNames = {
  OperatorPause: 'operator_pause',
  FailureThresholdExceeded: 'failure_threshold_exceeded',
  StepApproval: 'step_approval',
  SignatureRequired: 'signature_required',
} as const satisfies Record<PauseReason, string>;

/** A reason, its start, and who caused it. */
export interface PauseCondition {
  readonly reason: PauseReason;
  /** RFC 3339. */
  readonly start_time: string;
  readonly by: string;
}

export type Phase = 'active' | 'paused' | 'rolling_back' | 'completed';

/** The counters on which a pause is decided; failures include devices that timed out. */
export interface FailureCounts {
  readonly scheduled: number;
  readonly failures: number;
  readonly stageScheduled: number;
  readonly stageFailures: number;
  readonly acknowledgedFailures: number;
  readonly acknowledgedScheduled: number;
}

export interface PausePolicy {
  readonly thresholdPercent: number;
  /** No pause before this many failures. */
  readonly minFailures: number;
}

/**
 * Reports whether the failures exceed the threshold, in integers, over all scheduled devices or over the current stage: with a
 * threshold of 10, 11 % pause the rollout and 10 % do not. Failures acknowledged by a resume do not count.
 */
export function exceedsThreshold(counts: FailureCounts, policy: PausePolicy): boolean {
  const failures = counts.failures - counts.acknowledgedFailures;
  if (failures < Math.max(1, policy.minFailures)) return false;
  const scheduled = counts.scheduled - counts.acknowledgedScheduled;
  const overall = failures * 100 > policy.thresholdPercent * scheduled;
  const stage =
    counts.stageScheduled > 0 && counts.stageFailures * 100 > policy.thresholdPercent * counts.stageScheduled;
  return overall || stage;
}

/** Returns the failure share of the scheduled devices in percent, with two decimals; 0 if none is scheduled. */
export function failurePercent(scheduled: number, failures: number): number {
  return scheduled === 0 ? 0 : Math.round((failures * 10_000) / scheduled) / 100;
}

/** Returns the phase of a rollout. It is paused if the manifest or any condition holds it. */
export function phaseOf(state: {
  readonly completed: boolean;
  readonly rollingBack: boolean;
  readonly heldBySpec: boolean;
  readonly pauseConditions: readonly PauseCondition[];
}): Phase {
  if (state.completed) return 'completed';
  if (state.rollingBack) return 'rolling_back';
  return state.heldBySpec || state.pauseConditions.length > 0 ? 'paused' : 'active';
}

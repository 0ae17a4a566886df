// Decisions about a rollout that are made with each report: whether it pauses, and its phase. Pure.

/** Reasons for which a rollout is held. */
export type PauseReason = 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval';

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

/** Returns the terminal state that a report leads to. Success with another version than the package's is a failure. */
export function reportedState(report: {
  readonly success: boolean;
  readonly firmwareVersion: string;
  readonly expectedVersion: string;
}): { state: 'successful' | 'failure'; error: string } {
  if (!report.success) return { state: 'failure', error: '' };
  if (report.firmwareVersion === report.expectedVersion) return { state: 'successful', error: '' };
  return {
    state: 'failure',
    error: `reported success on version ${JSON.stringify(report.firmwareVersion)} instead of ${report.expectedVersion}`,
  };
}

/**
 * Reports whether a report may move a device to another state: a terminal report counts once, a late one corrects a timeout, and a
 * success may be revoked once. Nothing else changes what was reported.
 */
export function mayMove(from: string, to: 'successful' | 'failure'): boolean {
  if (['scheduled', 'sent', 'downloading', 'timed_out'].includes(from)) return true;
  return from === 'successful' && to === 'failure';
}

/** A report of a device that is rolling back. */
export interface ReportOnWayBack {
  /** The device's state in the rollback; `scheduled`: the command is not delivered yet. */
  readonly from: string;
  readonly success: boolean;
  readonly firmwareVersion: string;
  readonly updateVersion: string;
  readonly rollbackVersion: string;
}

/**
 * Returns the state that a report leads to once a rollback has begun, or undefined if it changes none. A device that was installing
 * the update when the rollback began still reports on the update: that updates its version, but is no response to a rollback
 * command that it has not received or carried out.
 */
export function stateOnWayBack(report: ReportOnWayBack): 'rolled_back' | 'failure' | undefined {
  if (report.success && report.firmwareVersion === report.rollbackVersion) {
    return report.from === 'rolled_back' ? undefined : 'rolled_back';
  }
  const delivered = report.from === 'sent' || report.from === 'downloading';
  if (!delivered || (report.success && report.firmwareVersion === report.updateVersion)) return undefined;
  return 'failure';
}

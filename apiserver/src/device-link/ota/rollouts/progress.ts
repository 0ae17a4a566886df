// The decisions of a rollout that must not wait for anyone: does this report pause it, what phase is it in.

/** Reasons for which a rollout is held. */
export type PauseReason = 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval';

/** One reason, since when, and whose doing. */
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
 * Whether the failures exceed the threshold: strictly, in integers, over all scheduled devices or over the current stage
 * (SPEC, Rollout: with a threshold of 10 it pauses when 11 % have failed). What was acknowledged by a resume no longer counts.
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

/** Failure share of the scheduled devices in percent, two decimals; 0 when nothing is scheduled. */
export function failurePercent(scheduled: number, failures: number): number {
  return scheduled === 0 ? 0 : Math.round((failures * 10_000) / scheduled) / 100;
}

/** The phase that follows from what a rollout was told: paused = held by the manifest or by any condition. */
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

/** The terminal state that a report leads to. Success on another version than the package's is a failure. */
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
 * Whether a report may move a device from one state to another: a terminal report counts once; a late one corrects a
 * timeout; a success may be taken back once; nothing else changes what was reported.
 */
export function mayMove(from: string, to: 'successful' | 'failure'): boolean {
  if (['scheduled', 'sent', 'downloading', 'timed_out'].includes(from)) return true;
  return from === 'successful' && to === 'failure';
}

/** A report of a device on its way back. */
export interface ReportOnWayBack {
  /** The device's state on the way back; `scheduled`: it has not got the command yet. */
  readonly from: string;
  readonly success: boolean;
  readonly firmwareVersion: string;
  readonly updateVersion: string;
  readonly rollbackVersion: string;
}

/**
 * The state that a report leads to once a rollback has begun; undefined when it changes none. A device that was in the middle
 * of the update when the rollback began still reports on the update: that is news of its version, and no answer to a command
 * that it has not got or not carried out yet.
 */
export function stateOnWayBack(report: ReportOnWayBack): 'rolled_back' | 'failure' | undefined {
  if (report.success && report.firmwareVersion === report.rollbackVersion) {
    return report.from === 'rolled_back' ? undefined : 'rolled_back';
  }
  const delivered = report.from === 'sent' || report.from === 'downloading';
  if (!delivered || (report.success && report.firmwareVersion === report.updateVersion)) return undefined;
  return 'failure';
}

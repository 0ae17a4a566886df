// Decides what a device's report means for its state in a rollout.

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
 * success may be revoked once. Nothing else changes what was reported. `wasCancelled`: the rollout was
 * cancelled while the device may have been updating, so it was marked skipped although nobody chose to skip it.
 */
export function mayMove(from: string, to: 'successful' | 'failure', wasCancelled: boolean): boolean {
  if (['scheduled', 'sent', 'downloading', 'timed_out'].includes(from)) return true;
  if (from === 'skipped') return wasCancelled;
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

// OtaRollout: drives a rollout through its stages. Each reconcile applies the manifest, executes decisions until there
// are none (step-decision.ts), and copies the data plane's observation into status.
import type { OtaRollout } from '@kellet/crds';
import type { ApplyResponse, OtaRolloutObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, findCondition, type Finding, holds, kubernetesTime, unknown, withReady } from '../conditions.ts';
import { toCamelCase, toMilliseconds } from '../messages.ts';
import {
  type Environment,
  type KindReconciler,
  type Observation,
  type Preparation,
  readyHappenings,
  type StatusFields,
} from '../reconciler.ts';
import type { ReconcileContext } from '../runtime/controller.ts';
import type { Happening } from '../runtime/events.ts';
import { rolloutAhead } from './rollout-precedence.ts';
import { decideRollout, toAdvanceRequest } from './step-decision.ts';

type Status = NonNullable<OtaRollout['status']>;
type PauseReason = NonNullable<Status['pauseConditions']>[number]['reason'];

/**
 * Maximum number of calls to the data plane per reconcile. Larger fleets continue in the next one, after a status
 * write.
 */
const callsPerReconcile = 20;
/** Delay after the data plane did not execute a decision although nothing had changed, in milliseconds. */
const disagreementMilliseconds = 5000;
/** Interval at which a rollout that waits for another one is retried, in milliseconds. */
const aheadRetryMilliseconds = 30_000;

/** Longest name of who acted: that of a service account may be longer. */
const longestActor = 256;

/** Converts the data plane's observation to status. */
export function toRolloutStatus(rolloutId: string, observed: OtaRolloutObserved): StatusFields<OtaRollout> {
  const { counts } = observed;
  const time = (timestamp: Parameters<typeof toMilliseconds>[0]): string | undefined => {
    const milliseconds = toMilliseconds(timestamp);
    return milliseconds === undefined ? undefined : kubernetesTime(milliseconds);
  };
  return {
    rolloutId,
    phase: toCamelCase<NonNullable<Status['phase']>>(observed.phase),
    outcome: toCamelCase<NonNullable<Status['outcome']>>(observed.outcome),
    message: observed.message.slice(0, 1024),
    scheduledCount: observed.scheduled_initially,
    counts: counts && {
      eligible: counts.eligible,
      scheduled: counts.scheduled,
      sent: counts.sent,
      succeeded: counts.succeeded,
      failed: counts.failed,
      timedOut: counts.timed_out,
      skipped: counts.skipped,
      removed: counts.removed,
    },
    failurePercent: Math.min(100, Math.ceil(observed.failure_percent)),
    effectivePercent: observed.effective_percent,
    pauseConditions: observed.pause_conditions.map((condition) => ({
      reason: condition.reason as PauseReason,
      startTime: time(condition.start_time) ?? kubernetesTime(0),
      by: condition.by.slice(0, longestActor) || undefined,
    })),
    control: {
      expandedToPercent: observed.expanded_to_percent,
      acknowledgedFailures: observed.acknowledged_failures,
      rollbackRequestedAt: time(observed.rollback_requested_at),
      by: observed.rollback_requested_by.slice(0, longestActor) || undefined,
    },
  };
}

/** Returns the most severe reason for which a rollout is paused. */
export function pauseReason(observed: OtaRolloutObserved): PauseReason | 'HeldBySpec' {
  const reasons = observed.pause_conditions.map(({ reason }) => reason);
  const gravest = (['FailureThresholdExceeded', 'SignatureRequired', 'OperatorPause', 'StepApproval'] as const).find(
    (reason) => reasons.includes(reason),
  );
  return gravest ?? 'HeldBySpec';
}

/** The warning that a manifest was lowered in vain. */
const percentLowered = (from: number): Finding =>
  holds(
    'PercentLowered',
    'DevicesKept',
    `the spec covers less than ${from} % now: devices that were scheduled stay in the rollout; cancel it or roll it back to stop them`,
  );

/** Returns the findings of a rollout that the data plane has accepted, ending with Ready and possibly Stalled. */
export function rolloutFindings(observed: OtaRolloutObserved): Finding[] {
  const { message, lowered_from_percent: lowered } = observed;
  const accepted = ['Accepted', 'ReferencesResolved', 'Synced'].map((type) => holds(type, type));
  const find = (reason: string, progressing: boolean, degraded: boolean, done = false): Finding[] => [
    ...accepted,
    progressing ? holds('Progressing', reason, message) : fails('Progressing', reason, message),
    degraded ? holds('Degraded', reason, message) : fails('Degraded', 'AsExpected', ''),
    done ? holds('Ready', reason, message) : fails('Ready', reason, message),
    ...(lowered > 0 && observed.phase !== 'completed' ? [percentLowered(lowered)] : []),
    ...(degraded && !progressing ? [holds('Stalled', reason, message)] : []),
  ];
  switch (observed.phase) {
    case 'completed':
      if (observed.outcome === 'succeeded') return find('Succeeded', false, false, true);
      if (observed.outcome === 'rolled_back') return find('RolledBack', false, true);
      // It will never reach the state in the manifest: Stalled ends any wait for Ready.
      return [...find('Cancelled', false, false), holds('Stalled', 'Cancelled', message)];
    case 'rolling_back':
      return find('RollingBack', true, true);
    case 'paused': {
      const reason = pauseReason(observed);
      return find(reason, false, reason === 'FailureThresholdExceeded');
    }
    default:
      return find('RollingOut', true, false);
  }
}

/** Returns the events for a change of status. A rollout that has not begun reports changes of Ready. */
export function rolloutHappenings(before: Status | undefined, after: Status | undefined): Happening[] {
  if (!after?.phase) return readyHappenings(before, after);
  const lowered = findCondition({ status: after }, 'PercentLowered');
  const isNew = lowered && !findCondition({ status: before }, 'PercentLowered');
  return [
    ...(isNew ? [{ type: 'Warning', reason: lowered.type, message: lowered.message } as const] : []),
    ...phaseHappenings(before, after, after.phase),
  ];
}

function phaseHappenings(before: Status | undefined, after: Status, phase: NonNullable<Status['phase']>): Happening[] {
  const message = after.message || phase;
  const exceeded = (status: Status | undefined): boolean =>
    status?.pauseConditions?.some(({ reason }) => reason === 'FailureThresholdExceeded') ?? false;
  if (exceeded(after) && !exceeded(before)) return [{ type: 'Warning', reason: 'FailureThresholdExceeded', message }];
  if (before?.phase === phase) return [];
  switch (phase) {
    case 'Active':
      return [{ type: 'Normal', reason: before?.phase ? 'Resumed' : 'Started', message }];
    case 'Paused':
      return [{ type: 'Normal', reason: 'Paused', message }];
    case 'RollingBack':
      return [{ type: 'Warning', reason: 'RollingBack', message }];
    case 'Completed':
      // A record of before the resource: nothing runs.
      if (!before?.phase) return [{ type: 'Warning', reason: 'AlreadyCompleted', message }];
      if (after.outcome === 'RolledBack') return [{ type: 'Warning', reason: 'RolledBack', message }];
      return [{ type: 'Normal', reason: after.outcome === 'Succeeded' ? 'Completed' : 'Cancelled', message }];
  }
}

/** Reconciles rollouts. */
export class OtaRolloutReconciler implements KindReconciler<'OtaRollout'> {
  readonly kind = 'OtaRollout';
  readonly aspects = ['Accepted', 'ReferencesResolved', 'Synced'];
  readonly happenings = rolloutHappenings;
  private readonly environment: Environment;

  constructor(environment: Environment) {
    this.environment = environment;
  }

  async prepare(rollout: OtaRollout): Promise<Preparation> {
    const { cluster } = this.environment;
    const { namespace = '' } = rollout.metadata;
    const typeOf = (name: string): string | undefined => cluster.get('OtaPackage', { namespace, name })?.spec.type;
    const others = cluster.firstRollouts(namespace, rollout.spec.targetProfileRef.name);
    const ahead = rolloutAhead(rollout, others, typeOf);
    if (!ahead) return { spec: rollout.spec, findings: [] };
    const message = `waiting for OtaRollout ${ahead.metadata.name}: only one rollout per profile and package type can run at a time`;
    const findings = [
      fails('Accepted', 'RolloutInProgress', message),
      unknown('ReferencesResolved', 'Refused', 'not evaluated: Accepted is False'),
      unknown('Synced', 'Refused', 'not evaluated: Accepted is False'),
    ];
    return {
      blocked: withReady(findings, { reason: 'Ready', message: '' }),
      requeueAfterMilliseconds: aheadRetryMilliseconds,
    };
  }

  async observe(
    rollout: OtaRollout,
    tenantId: string,
    { id, ota_rollout }: ApplyResponse,
    context: ReconcileContext,
  ): Promise<Observation<OtaRollout>> {
    if (!ota_rollout) throw new Error('the data plane returned no observation of the rollout');
    const { observed, requeueAfterMilliseconds } = await this.drive(rollout, tenantId, id, ota_rollout, context);
    return {
      status: toRolloutStatus(id, observed),
      findings: rolloutFindings(observed),
      requeueAfterMilliseconds,
    };
  }

  /** Executes decisions until there are none, or until the data plane does not execute one. */
  private async drive(
    rollout: OtaRollout,
    tenantId: string,
    rolloutId: string,
    first: OtaRolloutObserved,
    { logger, signal }: ReconcileContext,
  ): Promise<{ observed: OtaRolloutObserved; requeueAfterMilliseconds?: number }> {
    const { dataPlane } = this.environment;
    const { steps = [] } = rollout.spec;
    let observed = first;
    for (let calls = 0; calls < callsPerReconcile && !signal.aborted; calls += 1) {
      const { action, requeueAfterMilliseconds } = decideRollout(steps, observed);
      if (!action) return { observed, requeueAfterMilliseconds };
      const response = await dataPlane.advanceRollout(toAdvanceRequest(tenantId, rolloutId, observed.revision, action));
      if (!response.observed) throw new Error('the data plane returned no observation of the rollout');
      logger.info({ action, applied: response.applied, phase: response.observed.phase }, 'advanced the rollout');
      const moved = response.observed.revision !== observed.revision;
      observed = response.observed;
      // An action without effect would be decided repeatedly.
      if (!moved) return { observed, requeueAfterMilliseconds: disagreementMilliseconds };
    }
    return { observed, requeueAfterMilliseconds: 0 };
  }
}

// Decides what a rollout does next from the manifest's steps, the data plane's observation, and its clock.
//
// Only the operator makes these decisions; the data plane executes one if nothing has changed since. Pausing is not
// among them: the data plane decides it in the transaction of the report that causes it (pause-decision.ts).
import type { OtaRolloutSpec } from '@kellet/crds';
import type { AdvanceRolloutRequest, OtaRolloutObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { toMilliseconds } from '../messages.ts';

/** Action for the data plane to execute. */
export type RolloutAction =
  'expire_devices' | 'complete' | 'finish_rollback' | { begin_step: number } | { request_approval: number };

/** An action, or a delay until the next decision, or neither if the next report triggers it. */
export interface RolloutDecision {
  action?: RolloutAction;
  requeueAfterMilliseconds?: number;
}

/** Interval at which a rollout whose devices are being scheduled is looked at, in milliseconds. */
const schedulingCheckMilliseconds = 5000;

/** Minimum delay for a timer in the past, so that differing clocks cannot cause a busy loop. */
const shortestWaitMilliseconds = 1000;

type Steps = NonNullable<OtaRolloutSpec['steps']>;

/** Decides the next action of a rollout. */
export function decideRollout(steps: Steps, observed: OtaRolloutObserved): RolloutDecision {
  const now = toMilliseconds(observed.now) ?? 0;
  if (observed.phase === 'completed') return {};
  const nextTimeout = toMilliseconds(observed.next_timeout_at);
  if (nextTimeout !== undefined && nextTimeout <= now) return { action: 'expire_devices' };
  const timers = [nextTimeout, toMilliseconds(observed.window_changes_at)].filter((time) => time !== undefined);
  const untilTimer = timers.length === 0 ? undefined : Math.max(shortestWaitMilliseconds, Math.min(...timers) - now);
  if (observed.phase === 'rolling_back') {
    return observed.rollback_pending === 0 ? { action: 'finish_rollback' } : { requeueAfterMilliseconds: untilTimer };
  }
  if (observed.phase !== 'active') return { requeueAfterMilliseconds: untilTimer };
  const action = nextAction(steps, observed, now);
  if (typeof action === 'number') return { requeueAfterMilliseconds: Math.min(action, untilTimer ?? action) };
  return action ? { action } : { requeueAfterMilliseconds: untilTimer };
}

/** Returns the next action of an active rollout, or the milliseconds until it is due, or undefined. */
function nextAction(steps: Steps, observed: OtaRolloutObserved, now: number): RolloutAction | number | undefined {
  // The data plane schedules by itself and reports it. An earlier release of it may not have begun that.
  if (observed.scheduling_due) return schedulingCheckMilliseconds;
  if (everyTargetSucceeded(observed)) return 'complete';
  const index = observed.step_index + 1;
  const step = steps[index];
  if (!step) return undefined;
  // A command has already raised the rollout past this step: there is nothing to soak or approve.
  if (step.percent <= observed.effective_percent && !step.approval) return { begin_step: index };
  if (!observed.stage_finished) return undefined;
  const rested = toMilliseconds(observed.last_terminal_at);
  const soaked = rested === undefined ? now : rested + (step.soakSeconds ?? 0) * 1000;
  if (soaked > now) return soaked - now;
  if (step.approval && !observed.next_step_approved) return { request_approval: index };
  return { begin_step: index };
}

/** Reports whether every device of a non-empty fleet has succeeded or was skipped. */
function everyTargetSucceeded({ counts, effective_percent }: OtaRolloutObserved): boolean {
  if (!counts || effective_percent < 100) return false;
  return (
    counts.succeeded > 0 &&
    counts.scheduled >= counts.eligible &&
    counts.succeeded + counts.skipped === counts.scheduled
  );
}

/** Returns the request to execute an action on the revision for which it was decided. */
export function toAdvanceRequest(
  tenantId: string,
  rolloutId: string,
  revision: bigint,
  action: RolloutAction,
): AdvanceRolloutRequest {
  const request = { tenant_id: tenantId, rollout_id: rolloutId, revision };
  if (action === 'expire_devices') return { ...request, expire_devices: {} };
  if (action === 'complete') return { ...request, complete: {} };
  if (action === 'finish_rollback') return { ...request, finish_rollback: {} };
  if ('begin_step' in action) return { ...request, begin_step: { step_index: action.begin_step } };
  return { ...request, request_approval: { step_index: action.request_approval } };
}

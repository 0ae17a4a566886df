// What a rollout does next: one decision from the manifest's steps, what the data plane observed, and its clock.
//
// Only the operator decides this; the data plane carries a decision out if nothing has changed since. It never decides to
// stop: the automatic pause is part of the report that causes it.
import type {
  AdvanceRolloutRequest,
  OtaRolloutObserved,
  RolloutStep,
} from '@kellet/proto/ts/kellet/control/v1/control';
import { toMilliseconds } from '../messages.ts';

/** What the data plane is asked to do. */
export type RolloutAction =
  | 'schedule_devices'
  | 'expire_devices'
  | 'complete'
  | 'finish_rollback'
  | { begin_step: number }
  | { request_approval: number };

/** An action, or a time to look again, or neither: the next report will bring the next decision. */
export interface RolloutDecision {
  action?: RolloutAction;
  requeueAfterMs?: number;
}

/** A timer that lies in the past is looked at again after this, so that a disagreement of clocks never spins. */
const shortestWaitMs = 1000;

/** What the decision looks at beside the observation. */
export interface RolloutFacts {
  steps: readonly RolloutStep[];
  /** The fleet has not been looked over for hours, or never by this operator: nothing calls for it, but nothing is taken for granted. */
  lookDue: boolean;
  /** Milliseconds for which the fleet is not looked over again: each look costs the data plane time that grows with it. */
  restMs: number;
}

/** Decides the next thing to do for a rollout. */
export function decideRollout(facts: RolloutFacts, observed: OtaRolloutObserved): RolloutDecision {
  const now = toMilliseconds(observed.now) ?? 0;
  if (observed.phase === 'completed') return {};
  const nextTimeout = toMilliseconds(observed.next_timeout_at);
  if (nextTimeout !== undefined && nextTimeout <= now) return { action: 'expire_devices' };
  const untilTimeout = nextTimeout === undefined ? undefined : Math.max(shortestWaitMs, nextTimeout - now);
  if (observed.phase === 'rolling_back') {
    return observed.rollback_pending === 0 ? { action: 'finish_rollback' } : { requeueAfterMs: untilTimeout };
  }
  if (observed.phase !== 'active') return { requeueAfterMs: untilTimeout };
  const action = nextAction(facts, observed, now);
  if (typeof action === 'number') return { requeueAfterMs: Math.min(action, untilTimeout ?? action) };
  return action ? { action } : { requeueAfterMs: untilTimeout };
}

/** @returns what an active rollout does, or the milliseconds until its next step, or undefined */
function nextAction(
  { steps, lookDue, restMs }: RolloutFacts,
  observed: OtaRolloutObserved,
  now: number,
): RolloutAction | number | undefined {
  const scheduled = observed.counts?.scheduled ?? 0;
  if (scheduled < observed.covered || observed.scheduling_due || lookDue) {
    return restMs > 0 ? restMs : 'schedule_devices';
  }
  if (everyTargetSucceeded(observed)) return 'complete';
  const index = observed.step_index + 1;
  const step = steps[index];
  if (!step) return undefined;
  // A verb has raised the rollout past the step already: nothing is left to soak or to approve.
  if (step.percent <= observed.effective_percent && !step.approval) return { begin_step: index };
  if (!observed.stage_finished) return undefined;
  const rested = toMilliseconds(observed.last_terminal_at);
  const soaked = rested === undefined ? now : rested + step.soak_seconds * 1000;
  if (soaked > now) return soaked - now;
  if (step.approval && !observed.next_step_approved) return { request_approval: index };
  return { begin_step: index };
}

/** Every device of the whole fleet has succeeded or was skipped; never of an empty fleet. */
function everyTargetSucceeded({ counts, effective_percent }: OtaRolloutObserved): boolean {
  if (!counts || effective_percent < 100) return false;
  return (
    counts.succeeded > 0 &&
    counts.scheduled >= counts.eligible &&
    counts.succeeded + counts.skipped === counts.scheduled
  );
}

/** @returns the request that carries out an action on the revision that it was decided on */
export function toAdvanceRequest(
  tenantId: string,
  rolloutId: string,
  revision: bigint,
  action: RolloutAction,
): AdvanceRolloutRequest {
  const request = { tenant_id: tenantId, rollout_id: rolloutId, revision };
  if (action === 'schedule_devices') return { ...request, schedule_devices: {} };
  if (action === 'expire_devices') return { ...request, expire_devices: {} };
  if (action === 'complete') return { ...request, complete: {} };
  if (action === 'finish_rollback') return { ...request, finish_rollback: {} };
  if ('begin_step' in action) return { ...request, begin_step: { step_index: action.begin_step } };
  return { ...request, request_approval: { step_index: action.request_approval } };
}

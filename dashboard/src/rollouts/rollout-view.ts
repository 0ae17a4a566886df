// What a rollout's page shows and offers. Pure.
import type { Schema } from '@kellet/client';

type Rollout = Schema<'Rollout'>;

/** What an operator can do to a rollout. */
export type Verb = 'pause' | 'resume' | 'approve' | 'rollback' | 'cancel';

/** Returns the operations that the rollout's state allows, in the order of their buttons. */
export function verbsOf(rollout: Pick<Rollout, 'status' | 'pause_reasons' | 'rollback_package_id'>): Verb[] {
  const { status, pause_reasons: reasons, rollback_package_id: rollbackPackage } = rollout;
  const ends: Verb[] = rollbackPackage === '' ? ['cancel'] : ['rollback', 'cancel'];
  if (status === 'active') return ['pause', ...ends];
  if (status !== 'paused') return [];
  // An approval that is missing is given, not overridden by resuming.
  const isHeld = reasons.some((reason) => reason !== 'step_approval');
  const starts: Verb[] = isHeld ? ['resume'] : [];
  return [...(reasons.includes('step_approval') ? (['approve'] as const) : []), ...starts, ...ends];
}

/** A stage of a rollout. */
export interface Stage {
  readonly percent: number;
  readonly state: 'done' | 'current' | 'coming';
  readonly soakSeconds: number;
  readonly approval: boolean;
}

/** Returns the stages: the canary and the steps after it. The current one is the last that has begun. */
export function stagesOf(
  rollout: Pick<Rollout, 'status' | 'outcome' | 'canary_percent' | 'steps' | 'effective_percent'>,
): Stage[] {
  const all = [
    { percent: rollout.canary_percent, soakSeconds: 0, approval: false },
    ...rollout.steps.map((step) => ({
      percent: step.percent,
      soakSeconds: step.soak_seconds,
      approval: step.approval,
    })),
  ];
  const reached = rollout.effective_percent;
  const begun = all.filter(({ percent }) => percent <= reached).length;
  const isOver = rollout.status === 'completed';
  return all.map((stage, index) => {
    if (index >= begun) return { ...stage, state: 'coming' };
    return { ...stage, state: index === begun - 1 && !isOver ? 'current' : 'done' };
  });
}

const none: Schema<'RolloutCounts'> = {
  eligible: 0,
  scheduled: 0,
  sent: 0,
  succeeded: 0,
  failed: 0,
  timed_out: 0,
  skipped: 0,
  removed: 0,
};

/** Returns the counts; a rollout that was just made may have none. */
export const countsOf = ({ counts }: Pick<Rollout, 'counts'>): Schema<'RolloutCounts'> => counts ?? none;

/** A part of the progress bar. */
export interface Part {
  readonly name: 'succeeded' | 'failed' | 'under way' | 'skipped';
  readonly count: number;
  readonly percent: number;
}

/** Returns the parts of the progress bar, as percentages of the eligible devices; the rest has not begun. */
export function progressOf(rollout: Pick<Rollout, 'counts'>): Part[] {
  const counts = countsOf(rollout);
  const total = Math.max(counts.eligible, 1);
  // scheduled counts every device that was ever sent the package, whatever its result.
  const ended = counts.succeeded + counts.failed + counts.timed_out + counts.skipped + counts.removed;
  const parts = [
    ['succeeded', counts.succeeded],
    ['failed', counts.failed + counts.timed_out],
    ['under way', Math.max(counts.scheduled - ended, 0)],
    ['skipped', counts.skipped],
  ] as const;
  return parts.map(([name, count]) => ({ name, count, percent: Math.min((count / total) * 100, 100) }));
}

const reasons: Readonly<Record<Schema<'RolloutPauseReason'>, string>> = {
  operator_pause: 'an operator has paused it',
  failure_threshold_exceeded: 'more devices failed than the threshold allows',
  step_approval: 'the next step waits for an approval',
  signature_required: 'the profile requires a signed package',
};

/** Returns why a rollout is paused, in words; empty if it is not. */
export const pauseText = (given: Rollout['pause_reasons']): string =>
  given.map((reason) => reasons[reason]).join(', and ');

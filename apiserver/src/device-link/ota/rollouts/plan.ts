// The stages of a rollout that was not created yet. Pure.
import type { CreateRolloutRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import { coverage } from './cohort.ts';

/** A stage: the canary or a step. */
export interface Stage {
  readonly percent: number;
  /** Devices scheduled by its end. */
  readonly scheduled: number;
  /** When it begins at the earliest, in seconds. */
  readonly seconds: number;
  /** Place of the first device that it adds, from 1, and their number. */
  readonly first: number;
  readonly added: number;
}

/** Returns the stages of a rollout to so many eligible devices. */
export function planStages(
  eligible: number,
  { canaryPercent, steps, maxPerMinute }: Pick<CreateRolloutRequest, 'canaryPercent' | 'steps' | 'maxPerMinute'>,
): Stage[] {
  let scheduled = 0;
  let seconds = 0;
  return [{ percent: canaryPercent, soakSeconds: 0 }, ...steps].map(({ percent, soakSeconds }) => {
    seconds += soakSeconds;
    const begun = seconds;
    const first = scheduled + 1;
    const added = Math.max(0, coverage(eligible, percent) - scheduled);
    if (maxPerMinute > 0) seconds += Math.ceil((added * 60) / maxPerMinute);
    scheduled += added;
    return { percent, scheduled, seconds: begun, first, added };
  });
}

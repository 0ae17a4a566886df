// The stages of a rollout that does not exist yet. Pure.
import type { Window } from '@kellet/proto/es/kellet/v1/common_pb';
import type { CreateRolloutRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import { coverage } from './cohort.ts';
import { afterOpen, openFrom } from './delivery-window.ts';

/** A stage: the canary or a step. */
export interface Stage {
  readonly percent: number;
  /** Devices scheduled by its end. */
  readonly scheduled: number;
  /** When its first command can be delivered, in seconds. */
  readonly seconds: number;
  /** Place of the first device that it adds, from 1, and their number. */
  readonly first: number;
  readonly added: number;
}

/** The longest time that a plan can state, in seconds. */
const maxSeconds = 2 ** 32 - 1;

/** When a planned rollout begins, and what decides how fast it proceeds. */
export interface PlanTimes {
  readonly now: Date;
  readonly window: Window | undefined;
  /** Time that a device takes for an update, 0 if it is not known. */
  readonly deviceSeconds: number;
}

/** Returns the stages of a rollout to so many eligible devices. */
export function planStages(
  eligible: number,
  { canaryPercent, steps, maxPerMinute }: Pick<CreateRolloutRequest, 'canaryPercent' | 'steps' | 'maxPerMinute'>,
  { now, window, deviceSeconds }: PlanTimes,
): Stage[] {
  let scheduled = 0;
  let at = now;
  return [{ percent: canaryPercent, soakSeconds: 0 }, ...steps].map(({ percent, soakSeconds }) => {
    at = new Date(at.getTime() + soakSeconds * 1000);
    const first = scheduled + 1;
    const added = Math.max(0, coverage(eligible, percent) - scheduled);
    if (added > 0) at = openFrom(window, at);
    const seconds = Math.min(maxSeconds, Math.ceil((at.getTime() - now.getTime()) / 1000));
    if (maxPerMinute > 0) at = afterOpen(window, at, Math.ceil((added * 60) / maxPerMinute) * 1000);
    if (added > 0) at = new Date(at.getTime() + deviceSeconds * 1000);
    scheduled += added;
    return { percent, scheduled, seconds, first, added };
  });
}

// How fast the commands of a rollout leave.

/** How many commands may leave now, and when the next ones may. */
export interface Pace {
  readonly allowed: number;
  /** Undefined: at any time. */
  readonly nextAt: Date | undefined;
  readonly intervalMilliseconds: number;
}

/** Commands of a fast rollout that leave together, in milliseconds of its rate. */
const burstMilliseconds = 1000;

/**
 * Returns how many of the wanted commands may leave at once when `perMinute` may leave a minute; 0: any number. What earlier
 * minutes left unused is not made up for: after a pause commands leave as slowly as before it.
 */
export function paceHandOuts(perMinute: number, nextAt: Date | undefined, wanted: number, now: Date): Pace {
  if (perMinute === 0) return { allowed: wanted, nextAt: undefined, intervalMilliseconds: 0 };
  const interval = 60_000 / perMinute;
  // A tenth of the interval early, so that polls that are not quite evenly spaced do not slow the rollout down.
  const latest = now.getTime() + (interval < burstMilliseconds ? burstMilliseconds : interval / 10);
  let at = Math.max(nextAt?.getTime() ?? 0, now.getTime());
  let allowed = 0;
  for (; allowed < wanted && at < latest; allowed += 1) at += interval;
  return { allowed, nextAt: new Date(at), intervalMilliseconds: interval };
}

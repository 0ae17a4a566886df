// The rate at which the commands of a rollout are delivered, and when devices look again that wait for its window.

/** How many commands may be delivered now, and when the next ones may. */
export interface Pace {
  readonly allowed: number;
  /** Undefined: at any time. */
  readonly nextAt: Date | undefined;
  readonly intervalMilliseconds: number;
}

/** Burst of a fast rollout, in milliseconds of its rate. */
const burstMilliseconds = 1000;

/**
 * Returns how many of the wanted commands may be delivered now at a rate of `perMinute`; 0: any number. Capacity that earlier
 * minutes left unused is lost: after a pause commands are delivered as slowly as before.
 */
export function paceHandOuts(perMinute: number, nextAt: Date | undefined, wanted: number, now: Date): Pace {
  if (perMinute === 0) return { allowed: wanted, nextAt: undefined, intervalMilliseconds: 0 };
  const interval = 60_000 / perMinute;
  // A tenth of the interval early, so that unevenly spaced polls do not slow the rollout down.
  const latest = now.getTime() + (interval < burstMilliseconds ? burstMilliseconds : interval / 10);
  let at = Math.max(nextAt?.getTime() ?? 0, now.getTime());
  let allowed = 0;
  for (; allowed < wanted && at < latest; allowed += 1) at += interval;
  return { allowed, nextAt: new Date(at), intervalMilliseconds: interval };
}

/** Time over which the devices that wait for a window look again once it opens, in milliseconds. */
export const openingMilliseconds = 10_000;

/**
 * Returns the milliseconds until a device looks again whose commands a closed window holds. Windows open on the minute; the end of
 * its id spreads the devices, so that a fleet whose polls and streams wait does not ask and download in the same instant.
 */
export function untilOpening(deviceId: string, now: number): number {
  const share = Number.parseInt(deviceId.slice(-6), 16) / 2 ** 24;
  return 60_000 - (now % 60_000) + Math.floor(share * openingMilliseconds);
}

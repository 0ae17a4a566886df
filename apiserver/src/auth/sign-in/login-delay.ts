// The delay before another sign-in after failures.

/** How failures of one kind delay further attempts. */
export interface DelayRule {
  /** Failures without delay. */
  readonly free: number;
  readonly maximumSeconds: number;
  /** Time without a failure after which the count restarts. */
  readonly forgetSeconds: number;
}

/** For a pair of account and address. */
export const pairRule: DelayRule = { free: 5, maximumSeconds: 900, forgetSeconds: 3600 };

/** For an address, whatever the account: many people may share one. */
export const addressRule: DelayRule = { free: 300, maximumSeconds: 900, forgetSeconds: 3600 };

/**
 * Returns the seconds until the next attempt after this number of failures: 0 at first, then 1, 2, 4, … up to the
 * rule's maximum.
 */
export function delayAfter(failures: number, rule: DelayRule): number {
  if (failures < rule.free) return 0;
  return Math.min(rule.maximumSeconds, 2 ** Math.min(failures - rule.free, 30));
}

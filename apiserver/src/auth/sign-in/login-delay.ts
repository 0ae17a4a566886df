// How long a sign-in must wait after failures. Pure.

/** How failures of one kind are held against further attempts. */
export interface DelayRule {
  /** Failures that cost nothing. */
  readonly free: number;
  readonly maximumSeconds: number;
  /** After this long without a failure the count starts again. */
  readonly forgetSeconds: number;
}

/** For a pair of account and address. */
export const pairRule: DelayRule = { free: 5, maximumSeconds: 900, forgetSeconds: 3600 };

/** For an address, whatever the account: many people may share it. */
export const addressRule: DelayRule = { free: 300, maximumSeconds: 900, forgetSeconds: 3600 };

/** Seconds until the next attempt after so many failures: none at first, then 1, 2, 4, … up to the rule's maximum. */
export function delayAfter(failures: number, rule: DelayRule): number {
  if (failures < rule.free) return 0;
  return Math.min(rule.maximumSeconds, 2 ** Math.min(failures - rule.free, 30));
}

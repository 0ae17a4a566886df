// Decides whether a refresh token is exchanged (RFC 9700, section 4.14.2).

/** Days until an unused refresh token expires, and days until its whole family expires. */
const refreshDays = 30;
export const familyDays = 90;

/** How long a used token still returns its own successor, so that a lost response can be requested again. */
const repeatMilliseconds = 10_000;

/** A refresh token and its family at the moment of the request; times in milliseconds. */
export interface RefreshState {
  readonly now: number;
  readonly expiresAt: number;
  /** When it was exchanged, if it was. */
  readonly usedAt: number | undefined;
  /** Whether the token it was exchanged for has itself been exchanged. */
  readonly successorUsed: boolean;
  readonly familyExpiresAt: number;
  readonly familyRevoked: boolean;
  /** Whether the user may no longer sign in. */
  readonly holderRefused: boolean;
}

/**
 * `rotate`: exchange it. `repeat`: return its successor again. `reuse`: the token may be stolen; end the family.
 * `refuse`: it is no longer valid.
 */
export type RefreshDecision = 'rotate' | 'repeat' | 'reuse' | 'refuse';

/** Decides about a known refresh token. */
export function decideRefresh(state: RefreshState): RefreshDecision {
  if (state.familyRevoked || state.holderRefused || state.now >= state.familyExpiresAt) return 'refuse';
  if (state.usedAt === undefined) return state.now < state.expiresAt ? 'rotate' : 'refuse';
  // Another process, whose clock is ahead, may have exchanged it: that is not lately for as long as the clocks differ.
  const lately = Math.abs(state.now - state.usedAt) < repeatMilliseconds;
  return lately && !state.successorUsed ? 'repeat' : 'reuse';
}

/** Returns when a token issued now expires: after thirty days, but never after its family. */
export function refreshExpiry(now: number, familyExpiresAt: number): number {
  return Math.min(now + refreshDays * 86_400_000, familyExpiresAt);
}

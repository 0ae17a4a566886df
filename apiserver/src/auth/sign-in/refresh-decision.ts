// What a refresh token gets its holder (RFC 9700, section 4.14.2). Pure.

/** Days that a refresh token lives unless it is exchanged, and days that the whole family may live. */
export const refreshDays = 30;
export const familyDays = 90;

/** How long a used token still answers its own successor, so that a response lost on the way can be fetched again. */
export const repeatMilliseconds = 10_000;

/** A refresh token and its family at the moment of the request; times in milliseconds. */
export interface RefreshState {
  readonly now: number;
  readonly expiresAt: number;
  /** When it was exchanged; undefined: not yet. */
  readonly usedAt: number | undefined;
  /** Whether the token it was exchanged for has itself been exchanged. */
  readonly successorUsed: boolean;
  readonly familyExpiresAt: number;
  readonly familyRevoked: boolean;
  /** The user or the tenant may not sign in any more. */
  readonly holderRefused: boolean;
}

/**
 * `rotate`: exchange it. `repeat`: answer the successor again. `reuse`: somebody holds a token that they should not have: end
 * the family. `refuse`: it is worth nothing any more.
 */
export type RefreshDecision = 'rotate' | 'repeat' | 'reuse' | 'refuse';

/** Decides on a known refresh token. */
export function decideRefresh(state: RefreshState): RefreshDecision {
  if (state.familyRevoked || state.holderRefused || state.now >= state.familyExpiresAt) return 'refuse';
  if (state.usedAt === undefined) return state.now < state.expiresAt ? 'rotate' : 'refuse';
  const lately = state.now - state.usedAt < repeatMilliseconds;
  return lately && !state.successorUsed ? 'repeat' : 'reuse';
}

/** When a token given out now ends: thirty days on, but never after its family. */
export function refreshExpiry(now: number, familyExpiresAt: number): number {
  return Math.min(now + refreshDays * 86_400_000, familyExpiresAt);
}

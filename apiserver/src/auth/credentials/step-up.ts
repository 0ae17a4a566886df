// How recent a sign-in with a second factor must be for calls with Access.step_up (docs/decisions/0045).
import type { SessionState } from './credential-store.ts';

/** Minutes after a sign-in during which its user may make such calls. */
export const stepUpMinutes = 15;

/**
 * Returns the time, in seconds since 1970, until which a session may call methods with Access.step_up; undefined for
 * ever, because its user has no second factor to ask for.
 */
export function stepUpUntil(
  session: Pick<SessionState, 'mfa_enrolled' | 'aal' | 'authenticated_at'>,
): number | undefined {
  if (!session.mfa_enrolled) return undefined;
  if (session.aal !== 'aal2') return 0;
  return Math.floor(session.authenticated_at.getTime() / 1000) + stepUpMinutes * 60;
}

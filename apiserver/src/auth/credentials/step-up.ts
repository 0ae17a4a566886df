// How recent a sign-in with a second factor must be for calls with Access.step_up (docs/decisions/0045).
import type { Caller } from '../../platform/rpc.ts';
import type { SessionState } from './credential-store.ts';

/** Minutes after a sign-in during which its user may make such calls, or enroll a first second factor. */
export const stepUpMinutes = 15;

/**
 * Returns until when a session may call methods with Access.step_up, in seconds since 1970. For a user without a second factor, who
 * may call them at any time, it is until when that user may enroll one: whoever finds a session that was left open must not
 * lock its user out.
 */
export function stepUpUntil({
  mfa_enrolled: isEnrolled,
  aal,
  authenticated_at: signedInAt,
}: Pick<SessionState, 'mfa_enrolled' | 'aal' | 'authenticated_at'>): Pick<Caller, 'stepUpUntil' | 'enrollUntil'> {
  const until = Math.floor(signedInAt.getTime() / 1000) + stepUpMinutes * 60;
  if (!isEnrolled) return { enrollUntil: until };
  return { stepUpUntil: aal === 'aal2' ? until : 0 };
}

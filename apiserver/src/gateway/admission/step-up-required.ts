// The error for a sign-in that is not recent enough (RFC 9470).
import { stepUpMinutes } from '../../auth/credentials/step-up.ts';
import { KelletError } from '../../platform/errors.ts';

/** Rejection of a call that needs a recent sign-in with a second factor. */
export class StepUpRequired extends KelletError {
  /** The value of WWW-Authenticate, by which clients recognise the error. */
  readonly challenge: string;

  constructor() {
    const description = `sign in again: this call needs a sign-in with a second factor within the last ${stepUpMinutes} minutes`;
    super('UNAUTHENTICATED', description);
    this.challenge = `Bearer error="insufficient_user_authentication", error_description="${description}", acr_values="aal2", max_age=${stepUpMinutes * 60}`;
  }
}

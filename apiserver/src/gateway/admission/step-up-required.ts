// The error for a sign-in that is not recent enough (RFC 9470).
import { stepUpMinutes } from '../../auth/credentials/step-up.ts';
import { KelletError } from '../../platform/errors.ts';

/** Rejection of a call that needs a recent sign-in, with a second factor if the caller has one. */
export class StepUpRequired extends KelletError {
  /** The value of WWW-Authenticate, by which clients recognise the error. */
  readonly challenge: string;

  constructor(hasFactor: boolean) {
    const how = hasFactor ? ' with a second factor' : '';
    const description = `sign in again: this call needs a sign-in${how} within the last ${stepUpMinutes} minutes`;
    super('UNAUTHENTICATED', description);
    const level = hasFactor ? ' acr_values="aal2",' : '';
    this.challenge = `Bearer error="insufficient_user_authentication", error_description="${description}",${level} max_age=${stepUpMinutes * 60}`;
  }
}

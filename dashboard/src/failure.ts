// Describes errors to the reader. Pure.
import { ApiError } from '@kellet/client';

/** The description of an error, with the id under which the server logged the request. */
export interface Failure {
  readonly message: string;
  readonly requestId: string;
}

/** Returns the description of an error of a call. */
export function failureOf(error: unknown): Failure {
  if (error instanceof ApiError) {
    // The client puts method, path and status in front, which mean nothing to the reader of a page.
    const message = error.message.replace(/^[A-Z]+ \S+: \d+ /, '');
    const wait = error.retryAfterSeconds === undefined ? '' : ` Try again in ${error.retryAfterSeconds} s.`;
    return { message: sentence(message) + wait, requestId: error.requestId };
  }
  if (error instanceof TypeError) {
    return { message: 'The API cannot be reached. Check the network, then try again.', requestId: '' };
  }
  return { message: sentence(error instanceof Error ? error.message : String(error)), requestId: '' };
}

/** Reports whether the caller has to sign in (again). */
export const isSignInNeeded = (error: unknown): boolean => error instanceof ApiError && error.status === 401;

function sentence(text: string): string {
  const upper = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(upper) ? upper : `${upper}.`;
}

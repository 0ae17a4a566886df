// When an event that a webhook did not accept is sent again, and when it is given up.

/** Attempts before an event is given up. */
export const maxAttempts = 10;

/** Returns the seconds before the next attempt: 10, doubling. */
export const retrySeconds = (attempts: number): number => 10 * 2 ** (attempts - 1);

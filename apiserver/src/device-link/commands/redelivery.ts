// When a command is handed out again.

const firstDelaySeconds = 30;
const longestDelaySeconds = 600;

/**
 * Seconds from a hand-out to the next one when the device stays silent; `attempts` counts the hand-outs so far, this one
 * included. They double from 30 seconds to ten minutes.
 */
export function redeliverySeconds(attempts: number): number {
  return Math.min(firstDelaySeconds * 2 ** (attempts - 1), longestDelaySeconds);
}

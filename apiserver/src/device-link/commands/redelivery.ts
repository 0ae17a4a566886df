// Decides when a command is delivered again.

const firstDelaySeconds = 30;
const maxDelaySeconds = 600;

/**
 * Returns the seconds from a delivery to the next one if the device does not respond. `attempts` counts the deliveries
 * so far, including this one. The delay doubles from 30 seconds to ten minutes.
 */
export function redeliverySeconds(attempts: number): number {
  return Math.min(firstDelaySeconds * 2 ** (attempts - 1), maxDelaySeconds);
}

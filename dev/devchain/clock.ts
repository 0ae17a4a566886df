// Timestamps in the processor's format.

/**
 * Returns the current time, RFC 3339 in UTC, with up to this many decimals of a second and no trailing zeros. Callbacks
 * and the journal use microseconds, responses nanoseconds.
 */
export function timestamp(decimals: 6 | 9 = 6): string {
  return formatTimestamp(Date.now(), process.hrtime.bigint(), decimals);
}

/**
 * Returns a time in UTC with this many decimals. `fine` is in nanoseconds of any clock: its part below a millisecond
 * follows the milliseconds.
 */
export function formatTimestamp(milliseconds: number, fine: bigint, decimals: 6 | 9): string {
  const below = (fine % 1_000_000n).toString().padStart(6, '0');
  const [whole = '', fraction = ''] = new Date(milliseconds).toISOString().slice(0, -1).split('.');
  const digits = `${fraction}${below}`.slice(0, decimals).replace(/0+$/, '');
  return digits === '' ? `${whole}Z` : `${whole}.${digits}Z`;
}

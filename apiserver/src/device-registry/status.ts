// When a device counts as online, and when that must be written. Pure.

/** What shows that a device lives. Only telemetry makes a device online; a poll prolongs it. */
export type SignOfLife = 'telemetry' | 'poll';

/** How long a device stays online after its stream closed, without another sign of life. */
export const graceAfterCloseMilliseconds = 10_000;

/** The longest that a sign of life of an online device stays in memory before it is written. */
const longestWriteDelay = 4000;

/** How long a sign of life may stay in memory: short against the time after which its absence would count. */
export function writeDelay(offlineAfterSeconds: number): number {
  return Math.min(longestWriteDelay, offlineAfterSeconds * 250);
}

/** What is known in memory of a device's life; times in milliseconds, 0: never. */
export interface LifeSigns {
  /** The last point's arrival. */
  readonly lastSeen: number;
  /** The last sign of any kind. */
  readonly aliveAt: number;
  /** When its stream closed, if no sign of life has followed. */
  readonly closedAt: number;
}

/**
 * When an online device goes offline unless another sign of life is written. Other processes may hold later signs that are
 * not written yet, so the time they may take is added.
 */
export function offlineAt(signs: LifeSigns, offlineAfterSeconds: number): number {
  const closed = signs.closedAt > 0 ? signs.closedAt + graceAfterCloseMilliseconds : Infinity;
  // A process that has just started may see a stream close whose signs it never saw.
  if (signs.aliveAt === 0) return closed;
  const silent = signs.aliveAt + offlineAfterSeconds * 1000 + writeDelay(offlineAfterSeconds);
  return Math.min(silent, closed);
}

/** The signs after another one. A sign that comes late changes nothing that a later one has said. */
export function withSign(signs: LifeSigns, kind: SignOfLife, at: number): LifeSigns {
  return {
    lastSeen: kind === 'telemetry' ? Math.max(signs.lastSeen, at) : signs.lastSeen,
    aliveAt: Math.max(signs.aliveAt, at),
    closedAt: at >= signs.closedAt ? 0 : signs.closedAt,
  };
}

/** The signs as they can be at a time: a clock that was put back has left none in the future. */
export const notAfter = (signs: LifeSigns, now: number): LifeSigns => ({
  lastSeen: Math.min(signs.lastSeen, now),
  aliveAt: Math.min(signs.aliveAt, now),
  closedAt: Math.min(signs.closedAt, now),
});

/** The signs after the device's stream closed. */
export function withClose(signs: LifeSigns, at: number): LifeSigns {
  return at > signs.aliveAt ? { ...signs, closedAt: at } : signs;
}

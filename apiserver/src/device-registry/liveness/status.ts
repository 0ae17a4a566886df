// Decides when a device counts as online, and when that must be written.

/** The source of a sign of life. Only telemetry makes a device online; a poll prolongs it. */
export type SignOfLife = 'telemetry' | 'poll';

/** How long a device stays online after its stream closed, without another sign of life. */
const graceAfterCloseMilliseconds = 10_000;

const maxWriteDelay = 150_000;
const maxGrace = 4000;

/** Returns how long a sign of life may stay unwritten: half of the offline timeout, so that the other half is left to write it. */
export function writeDelay(offlineAfterSeconds: number): number {
  return Math.min(maxWriteDelay, offlineAfterSeconds * 500);
}

/** Returns the time by which a device goes offline later than its timeout says, for writes that take a while. */
function grace(offlineAfterSeconds: number): number {
  return Math.min(maxGrace, offlineAfterSeconds * 250);
}

/** Signs of life in memory; times in milliseconds, 0: never. */
export interface LifeSigns {
  /** Arrival of the last point. */
  readonly lastSeen: number;
  /** The last sign of any kind. */
  readonly aliveAt: number;
  /** When its stream closed, if no sign of life has followed. */
  readonly closedAt: number;
}

/**
 * Returns when an online device goes offline unless another sign of life is written. Each process writes the signs it
 * holds well before then (writeDelay).
 */
export function offlineAt(signs: LifeSigns, offlineAfterSeconds: number): number {
  const closed = signs.closedAt > 0 ? signs.closedAt + graceAfterCloseMilliseconds : Infinity;
  // A process that has just started may see a stream close without having seen its signs.
  if (signs.aliveAt === 0) return closed;
  const silent = signs.aliveAt + offlineAfterSeconds * 1000 + grace(offlineAfterSeconds);
  return Math.min(silent, closed);
}

/** Returns the signs after another one. A late sign does not override a later one. */
export function withSign(signs: LifeSigns, kind: SignOfLife, at: number): LifeSigns {
  return {
    lastSeen: kind === 'telemetry' ? Math.max(signs.lastSeen, at) : signs.lastSeen,
    aliveAt: Math.max(signs.aliveAt, at),
    closedAt: at >= signs.closedAt ? 0 : signs.closedAt,
  };
}

/** Returns the signs limited to a time: after a clock was put back none is in the future. */
export const notAfter = (signs: LifeSigns, now: number): LifeSigns => ({
  lastSeen: Math.min(signs.lastSeen, now),
  aliveAt: Math.min(signs.aliveAt, now),
  closedAt: Math.min(signs.closedAt, now),
});

/** Returns the signs after the device's stream closed. At the same time as a sign, what is recorded later counts. */
export function withClose(signs: LifeSigns, at: number): LifeSigns {
  return at >= signs.aliveAt ? { ...signs, closedAt: at } : signs;
}

/** A question about the time: when it was sent and answered by this clock, and what the other clock showed. */
interface ClockReading {
  readonly sent: number;
  readonly received: number;
  readonly theirs: number;
}

/**
 * Returns by how many milliseconds this clock is ahead of another one. What is known stays as long as the reading allows
 * it: times that are translated with it keep their order, however long an answer takes.
 */
export function clockDifference(known: number, { sent, received, theirs }: ClockReading): number {
  // Clocks count whole milliseconds.
  const least = Math.floor(sent - theirs) - 1;
  const most = Math.ceil(received - theirs) + 1;
  // The clock was put back meanwhile.
  if (most < least) return most;
  return Math.min(Math.max(known, least), most);
}

// Parts waiting to be flushed in order of arrival and, after a flush was rejected for its data, the groups being
// searched for the bad row, each flushed alone.
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { halve, type Part } from './append.ts';
import { isKeyTaken } from './idempotency-keys.ts';

/** Parts that are flushed together. */
export interface FlushGroup {
  readonly parts: readonly Part[];
  /** Whether one of its points was rejected in an earlier flush. */
  readonly suspect: boolean;
}

/** Maximum points per flush; only a single larger request exceeds it. */
const maxPointsPerFlush = 10_000;

/** The queue of a writer. */
export class FlushQueue {
  private waiting: Part[] = [];
  private suspects: FlushGroup[] = [];

  get isEmpty(): boolean {
    return this.waiting.length === 0 && this.suspects.length === 0;
  }

  get hasSuspects(): boolean {
    return this.suspects.length > 0;
  }

  /** Iterates over all waiting parts. */
  *parts(): Iterable<Part> {
    for (const group of this.suspects) yield* group.parts;
    yield* this.waiting;
  }

  add(part: Part): void {
    this.waiting.push(part);
  }

  /**
   * Returns the next group; it has no parts if nothing is waiting. Parts that have already failed with UNAVAILABLE are
   * dropped.
   */
  take(): FlushGroup {
    const suspect = this.suspects.shift();
    if (suspect) return { ...suspect, parts: suspect.parts.filter((part) => !part.append.isSettled) };
    const parts: Part[] = [];
    let points = 0;
    let taken = 0;
    for (const part of this.waiting) {
      if (points > 0 && points + part.points.length > maxPointsPerFlush) break;
      taken += 1;
      if (part.append.isSettled) continue;
      parts.push(part);
      points += part.points.length;
    }
    this.waiting = this.waiting.slice(taken);
    return { parts, suspect: false };
  }

  /** Puts a group back at the front. */
  putBack(group: FlushGroup): void {
    if (group.parts.length === 0) return;
    if (group.suspect) this.suspects.unshift(group);
    else this.waiting.unshift(...group.parts);
  }

  /** Halves a group that was rejected for its data. A single rejected point is reported to its request. */
  takeApart(group: FlushGroup, error: unknown, logger: Logger): void {
    const [only] = group.parts;
    if (group.parts.length > 1) {
      const middle = group.parts.length >> 1;
      this.suspect(group.parts.slice(0, middle), group.parts.slice(middle));
      return;
    }
    const halves = halve(only!);
    if (halves) {
      only!.append.split();
      this.suspect([halves[0]], [halves[1]]);
    } else if (only!.idempotency) {
      only!.append.fail(idempotencyError(error));
    } else {
      logger.error({ err: error, tenantId: only!.points[0]?.tenantId }, 'the database rejected a valid point');
      only!.append.partRefused(only!.offset);
    }
  }

  private suspect(...groups: Part[][]): void {
    this.suspects.unshift(...groups.map((parts) => ({ parts, suspect: true })));
  }
}

/** Returns the error of a request whose Idempotency-Key is in use. */
export const keyTaken = (cause: unknown): KelletError =>
  new KelletError('ALREADY_EXISTS', 'the Idempotency-Key has just been used', { cause });

function idempotencyError(error: unknown): Error {
  if (isKeyTaken(error)) return keyTaken(error);
  return error instanceof Error ? error : new Error('a flush was refused', { cause: error });
}

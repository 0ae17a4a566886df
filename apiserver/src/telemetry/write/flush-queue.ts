// Parts waiting to be flushed, of which tenants take turns, and after a flush was rejected for its data, the groups being
// searched for the bad row, each flushed alone.
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { halve, type Part } from './append.ts';
import { isKeyTaken } from './idempotency-keys.ts';

/** Parts that are flushed together. */
export interface FlushGroup {
  readonly parts: readonly Part[];
  /** Whether it is flushed alone: one of its points was rejected in an earlier flush, or others would make it fail. */
  readonly suspect: boolean;
}

/** Maximum weight of a flush; only a single larger request exceeds it. */
export const flushWeight = 10_000;

/** The queue of a writer. */
export class FlushQueue {
  /** What waits, by owner; the first is next. Each has its parts in order of arrival. */
  private lines = new Map<string, Part[]>();
  private suspects: FlushGroup[] = [];

  get isEmpty(): boolean {
    return this.lines.size === 0 && this.suspects.length === 0;
  }

  get hasSuspects(): boolean {
    return this.suspects.length > 0;
  }

  /** Iterates over all waiting parts. */
  *parts(): Iterable<Part> {
    for (const group of this.suspects) yield* group.parts;
    for (const line of this.lines.values()) yield* line;
  }

  add(part: Part): void {
    const line = this.lines.get(part.owner);
    if (line) line.push(part);
    else this.lines.set(part.owner, [part]);
  }

  /**
   * Returns the next group; it has no parts if nothing is waiting. Each owner has its share of a flush, and what the others
   * leave of theirs. Parts that have already failed with UNAVAILABLE are dropped.
   */
  take(): FlushGroup {
    const suspect = this.suspects.shift();
    if (suspect) return { ...suspect, parts: suspect.parts.filter((part) => !part.append.isSettled) };
    const parts: Part[] = [];
    let weight = 0;
    const lines = [...this.lines].map(([owner, line]) => ({ owner, line, taken: 0, weight: 0 }));
    for (const most of [flushWeight / lines.length, Infinity]) {
      for (const one of lines) {
        while (one.taken < one.line.length && one.weight < most) {
          const part = one.line[one.taken]!;
          if (!part.append.isSettled) {
            if (weight > 0 && weight + part.weight > flushWeight) break;
            parts.push(part);
            weight += part.weight;
            one.weight += part.weight;
          }
          one.taken += 1;
        }
      }
    }
    for (const { owner, line, taken } of lines) {
      if (taken === 0) continue;
      // Behind those that had no turn.
      this.lines.delete(owner);
      if (taken < line.length) this.lines.set(owner, line.slice(taken));
    }
    return { parts, suspect: false };
  }

  /** Puts a group back at the front. */
  putBack(group: FlushGroup): void {
    if (group.parts.length === 0) return;
    if (group.suspect) this.suspects.unshift(group);
    else this.putFirst(group.parts);
  }

  /** Puts a group back of which some parts may make the next flush fail as well: the others are flushed before them. */
  setApart(group: FlushGroup, mayFail: (part: Part) => boolean): void {
    const { others = [], late = [] } = Object.groupBy(group.parts, (part) => (mayFail(part) ? 'late' : 'others'));
    this.putFirst(late);
    if (others.length > 0) this.suspect(others);
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

  private putFirst(parts: readonly Part[]): void {
    const lines = new Map<string, Part[]>();
    for (const [owner, line] of Map.groupBy(parts, (part) => part.owner))
      lines.set(owner, [...line, ...(this.lines.get(owner) ?? [])]);
    for (const [owner, line] of this.lines) if (!lines.has(owner)) lines.set(owner, line);
    this.lines = lines;
  }

  private suspect(...groups: (readonly Part[])[]): void {
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

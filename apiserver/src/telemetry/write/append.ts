// A request's points on their way through the writer: whole at first, in parts when a flush was refused for its data.
import { unavailable } from '../../platform/errors.ts';
import type { IdempotencyRow } from './flush.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/** What became of a request whose good points are durable. */
export interface Appended {
  /** Indexes of points that the database refused, all others being durable; empty in every expected case. */
  readonly refused: readonly number[];
}

/** One request that waits for its points to be durable. */
export class Append {
  readonly done: Promise<Appended>;
  /** Milliseconds since 1970 after which the caller is told UNAVAILABLE. */
  readonly deadline: number;
  private settled = false;
  private open = 1;
  private readonly refused: number[] = [];
  private resolve!: (appended: Appended) => void;
  private reject!: (error: Error) => void;

  constructor(deadline: number) {
    this.deadline = deadline;
    this.done = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Whether the caller has its answer already: what is left of the request must not be written any more. */
  get answered(): boolean {
    return this.settled;
  }

  /** A part became two. */
  split(): void {
    this.open += 1;
  }

  partCommitted(): void {
    this.open -= 1;
    if (this.open === 0 && !this.settled) {
      this.settled = true;
      this.resolve({ refused: this.refused });
    }
  }

  partRefused(index: number): void {
    this.refused.push(index);
    this.partCommitted();
  }

  fail(error: Error): void {
    if (this.settled) return;
    this.settled = true;
    this.reject(error);
  }

  expire(now: number): void {
    if (now >= this.deadline) this.fail(unavailable('telemetry cannot be stored at the moment'));
  }
}

/** Points of one request that are flushed together. */
export interface Part {
  readonly append: Append;
  readonly points: readonly AcceptedPoint[];
  /** Where the points begin among the request's. */
  readonly offset: number;
  readonly idempotency: IdempotencyRow | undefined;
}

/** The two halves of a part whose data was refused; undefined when it cannot be told apart any further. */
export function halve(part: Part): [Part, Part] | undefined {
  // The answer that an Idempotency-Key keeps speaks of all points, so that they stand or fall together.
  if (part.points.length < 2 || part.idempotency) return undefined;
  const middle = part.points.length >> 1;
  return [
    { ...part, points: part.points.slice(0, middle) },
    { ...part, points: part.points.slice(middle), offset: part.offset + middle },
  ];
}

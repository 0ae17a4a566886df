// A request's points on their way through the writer: whole at first, then split if a flush is rejected for its data.
import { KelletError, unavailable } from '../../platform/errors.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { IdempotencyRow } from './idempotency-keys.ts';

/** The result of a request whose valid points are durable. */
export interface Appended {
  /** Indexes of points the database rejected, with all others durable; normally empty. */
  readonly refused: readonly number[];
}

/** Points that the writer has refused, so that they will not be stored. */
export class NotTaken extends KelletError {
  constructor(message: string) {
    super('UNAVAILABLE', message, { retryAfterSeconds: 1 });
  }
}

/** A request waiting for its points to become durable. */
export class Append {
  readonly done: Promise<Appended>;
  /** Milliseconds since 1970 after which the request fails with UNAVAILABLE. */
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

  /** Whether the caller has a response already; the rest of the request must not be written any more. */
  get isSettled(): boolean {
    return this.settled;
  }

  /** Records that one part became two. */
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
  /** Whose turn it is in: a tenant, or {@link ownPoints}. */
  readonly owner: string;
  /** What the points cost, in small points. */
  readonly weight: number;
  readonly points: readonly AcceptedPoint[];
  /** Index of the first point within the request. */
  readonly offset: number;
  readonly idempotency: IdempotencyRow | undefined;
}

/** The owner of points that the service made itself, which may be of many tenants. */
export const ownPoints = '';

/** Bytes of a row that cost as much as a small point. */
const bytesOfPoint = 400;

/** A point with an anchor of its own costs as much as so many small ones: its batch is a row with a proof and an index entry. */
const pointsOfAnchor = 10;

/** Returns who waits for points to be stored, with the response that is kept for an Idempotency-Key, if any. */
export function ownerOf(points: readonly AcceptedPoint[], idempotency: IdempotencyRow | undefined): string {
  if (idempotency) return idempotency.tenantId;
  const [first] = points;
  return !first || first.isOwn || first.resultId !== undefined ? ownPoints : first.tenantId;
}

/** How many times the bytes of its row a point takes in memory, with its body; as objects it takes more. */
const memoryOfRow = 4;
const memoryOfObjects = 8;

/** Returns what points cost to be stored, in small points, and approximately the bytes that they take in memory. */
export function costOf(points: readonly AcceptedPoint[]): { readonly weight: number; readonly memory: number } {
  let bytes = 0;
  let memory = 0;
  let anchors = 0;
  for (const point of points) {
    const { row } = point;
    // The payload of a point with a row is text only once it is read.
    const size = row ? row.rowEnd - row.rowStart : point.payload.length;
    bytes += size;
    memory += size * (row ? memoryOfRow : memoryOfObjects);
    if (point.device.anchoringMode === 'per_event') anchors += 1;
  }
  const weight = Math.max(points.length, Math.ceil(bytes / bytesOfPoint)) + anchors * (pointsOfAnchor - 1);
  return { weight, memory };
}

/** Splits a part whose data was rejected into halves; returns undefined if it cannot be split further. */
export function halve(part: Part): [Part, Part] | undefined {
  // The stored response of an Idempotency-Key covers all points, so they succeed or fail together.
  if (part.points.length < 2 || part.idempotency) return undefined;
  const middle = part.points.length >> 1;
  return [
    { ...part, weight: part.weight / 2, points: part.points.slice(0, middle) },
    { ...part, weight: part.weight / 2, points: part.points.slice(middle), offset: part.offset + middle },
  ];
}

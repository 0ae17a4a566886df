// Points that wait to be sent: what a buffer is, and one in memory.
import type { Point } from '../messages.ts';

/** The oldest points of a buffer. */
export interface Batch {
  readonly points: readonly Point[];
  /** Position after the last of them. */
  readonly end: number;
}

/** A bounded queue of points. When it is full, the oldest points are dropped. */
export interface TelemetryBuffer {
  /** Adds a point. It is kept once this returns. */
  add(point: Point): void;
  /** Returns the oldest points, at most so many. */
  peek(maximumPoints: number): Batch;
  /** Removes the points before a position. */
  remove(end: number): void;
  /** Number of points in the buffer. */
  readonly size: number;
  /** Number of points that were dropped because the buffer was full, or because they were damaged. */
  readonly dropped: number;
  close(): void;
}

/** A buffer in memory: its points are lost with the process. */
export class MemoryBuffer implements TelemetryBuffer {
  private readonly maximumPoints: number;
  private points: Point[] = [];
  /** Position of the first point. */
  private start = 0;
  dropped = 0;

  constructor(maximumPoints = 10_000) {
    this.maximumPoints = maximumPoints;
  }

  get size(): number {
    return this.points.length;
  }

  add(point: Point): void {
    this.points.push(point);
    if (this.points.length <= this.maximumPoints) return;
    // An eighth at a time, because moving the rest costs as much for one as for many.
    const excess = Math.max(1, this.maximumPoints >> 3);
    this.dropped += excess;
    this.remove(this.start + excess);
  }

  peek(maximumPoints: number): Batch {
    const points = this.points.slice(0, maximumPoints);
    return { points, end: this.start + points.length };
  }

  remove(end: number): void {
    const count = Math.min(end - this.start, this.points.length);
    if (count <= 0) return;
    this.points = this.points.slice(count);
    this.start += count;
  }

  close(): void {
    this.points = [];
  }
}

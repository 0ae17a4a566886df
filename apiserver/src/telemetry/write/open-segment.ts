// A writer's view of the segment it writes to. Immutable: a failed flush reverts to the previous value.
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { FinishedSegment } from './flush.ts';

/** A segment and what has been sent to it. */
export interface OpenSegment {
  readonly segmentId: bigint;
  /** Milliseconds since 1970. */
  readonly openedAt: number;
  readonly rows: number;
  /** Device times, nanoseconds since 1970. */
  readonly leastTime: bigint;
  readonly greatestTime: bigint;
}

/** Returns a segment without rows. */
export function emptySegment(segmentId: bigint, openedAt: number): OpenSegment {
  return { segmentId, openedAt, rows: 0, leastTime: 2n ** 63n - 1n, greatestTime: 0n };
}

/** Returns the segment with the points added. */
export function withPoints(segment: OpenSegment, points: readonly AcceptedPoint[]): OpenSegment {
  let least = points[0]!.time;
  let greatest = least;
  for (const { time } of points) {
    if (isBefore(time, least)) least = time;
    if (isBefore(greatest, time)) greatest = time;
  }
  const leastTime = toNanoseconds(least);
  const greatestTime = toNanoseconds(greatest);
  return {
    ...segment,
    rows: segment.rows + points.length,
    leastTime: leastTime < segment.leastTime ? leastTime : segment.leastTime,
    greatestTime: greatestTime > segment.greatestTime ? greatestTime : segment.greatestTime,
  };
}

function isBefore(a: AcceptedPoint['time'], b: AcceptedPoint['time']): boolean {
  return a.seconds < b.seconds || (a.seconds === b.seconds && a.nanoseconds < b.nanoseconds);
}

/** When a segment is complete. */
export interface SegmentLimits {
  /** At this many rows; */
  readonly segmentRows: number;
  /** after this long, if it is large enough to deserve an index (a tenth of the rows); */
  readonly segmentSeconds: number;
  /** and after this long in any case. A small segment is read quickly without an index, but many of them add up. */
  readonly segmentMostSeconds: number;
}

/** Returns when the segment is complete, in milliseconds since 1970; Infinity while it is empty. */
export function completeAt(segment: OpenSegment, limits: SegmentLimits): number {
  if (segment.rows === 0) return Infinity;
  if (segment.rows >= limits.segmentRows) return 0;
  const seconds = segment.rows >= limits.segmentRows / 10 ? limits.segmentSeconds : limits.segmentMostSeconds;
  return segment.openedAt + seconds * 1000;
}

/** Returns the segment as recorded by the flush after its last one. */
export function finished(segment: OpenSegment): FinishedSegment {
  const { segmentId, rows, leastTime, greatestTime } = segment;
  return { segmentId, rows, leastTime, greatestTime };
}

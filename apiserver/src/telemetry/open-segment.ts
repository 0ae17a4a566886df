// What a writer knows of the segment it writes to. Values, never changed: a flush that fails goes back to the one before.
import type { FinishedSegment } from './flush.ts';
import { toNanoseconds } from './timestamp.ts';
import type { AcceptedPoint } from './validate.ts';

/** A segment with what has been sent to it. */
export interface OpenSegment {
  readonly segmentId: bigint;
  /** Milliseconds since 1970. */
  readonly openedAt: number;
  readonly rows: number;
  /** Device times, nanoseconds since 1970. */
  readonly leastTime: bigint;
  readonly greatestTime: bigint;
}

/** A segment without rows. */
export function emptySegment(segmentId: bigint, openedAt: number): OpenSegment {
  return { segmentId, openedAt, rows: 0, leastTime: 2n ** 63n - 1n, greatestTime: 0n };
}

/** The segment with the points in it. */
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

/** Whether the segment is complete: at so many rows, or so long after it was opened. */
export function isComplete(
  segment: OpenSegment,
  limits: { segmentRows: number; segmentSeconds: number },
  nowMilliseconds: number,
): boolean {
  return segment.rows >= limits.segmentRows || nowMilliseconds >= segment.openedAt + limits.segmentSeconds * 1000;
}

/** The segment as the flush after its last one records it. */
export function finished(segment: OpenSegment): FinishedSegment {
  const { segmentId, rows, leastTime, greatestTime } = segment;
  return { segmentId, rows, leastTime, greatestTime };
}

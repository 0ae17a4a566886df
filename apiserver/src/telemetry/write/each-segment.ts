// Does something with each segment that is due, one at a time: a segment with which it fails does not hold up the others.
import { KelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** Work on one segment has failed. */
class SegmentError extends Error {
  readonly segmentId: bigint;

  constructor(segmentId: bigint, cause: unknown) {
    super(`segment ${segmentId} could not be processed`, { cause });
    this.segmentId = segmentId;
  }
}

/**
 * Runs work on the next segment after the one given and returns its id, or undefined if there is none. The work calls `attempt` with
 * the id before it does anything that may fail with this segment alone. Throws SegmentError if it then fails, unless the database is
 * unavailable.
 */
export async function nextSegment(
  after: bigint,
  work: (attempt: (segmentId: bigint) => void) => Promise<bigint | undefined>,
): Promise<bigint | undefined> {
  let attempted = after;
  try {
    return await work((segmentId) => (attempted = segmentId));
  } catch (error) {
    if (attempted === after || error instanceof KelletError) throw error;
    throw new SegmentError(attempted, error);
  }
}

/** Takes each segment that is due, in order. Logs those that fail, which the next call tries again. */
export async function eachSegment(
  next: (after: bigint) => Promise<bigint | undefined>,
  logger: Logger,
  signal?: AbortSignal,
): Promise<void> {
  let after: bigint | undefined = 0n;
  while (after !== undefined && !signal?.aborted) {
    try {
      after = await next(after);
    } catch (error) {
      if (!(error instanceof SegmentError)) throw error;
      logger.error({ err: error, segmentId: String(error.segmentId) }, 'a segment could not be processed');
      after = error.segmentId;
    }
  }
}

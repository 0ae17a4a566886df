// Looks after complete segments: each gets its indexes once nothing is written to it any more.
import type { Database } from '../../platform/database/database.ts';
import { sleep } from '../../platform/clock.ts';
import type { Logger } from '../../platform/observability/logger.ts';

/** Indexes one complete segment; false when none is left, or another process is at it. */
export function indexNextSegment(database: Database): Promise<boolean> {
  return database.maintenance(async (tx) => {
    const { rows } = await tx.query<{ segment_id: bigint }>(
      `SELECT segment_id FROM telemetry_segments WHERE state = 'sealed'
       ORDER BY segment_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
    );
    const id = rows[0]?.segment_id;
    if (id === undefined) return false;
    // Readers go on meanwhile; nobody writes to a complete segment.
    await tx.query(`CREATE INDEX ON telemetry_segment_${id} (device_id, time)`);
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, prefix)`);
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, device_id)`);
    await tx.query(`ANALYZE telemetry_segment_${id}, leaf_index_${id}`);
    await tx.query(`UPDATE telemetry_segments SET state = 'indexed', indexed_at = now() WHERE segment_id = $1`, [id]);
    return true;
  });
}

/** Indexes segments as they become complete, until the signal aborts: looks for them after each interval. */
export async function indexSegments(
  database: Database,
  logger: Logger,
  intervalMilliseconds: number,
  signal: AbortSignal,
): Promise<void> {
  const next = () =>
    indexNextSegment(database).catch((error: unknown) => {
      logger.warn({ err: error }, 'a segment could not be indexed');
      return false;
    });
  while (!signal.aborted) {
    await sleep(intervalMilliseconds, signal);
    while (!signal.aborted && (await next()));
  }
}

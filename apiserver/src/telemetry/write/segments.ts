// Maintains complete segments: creates their indexes and counts their points once nothing is written to them any more.
import type { Database } from '../../platform/database/database.ts';

/** Indexes one complete segment; returns false if none is left or another process is working on it. */
export function indexNextSegment(database: Database): Promise<boolean> {
  return database.maintenance(async (tx) => {
    const { rows } = await tx.query<{ segment_id: bigint; state: string }>(
      `SELECT segment_id, state FROM telemetry_segments
       WHERE state = 'sealed' OR (state = 'indexed' AND NOT counted) ORDER BY segment_id LIMIT 1 FOR UPDATE SKIP LOCKED`,
    );
    const [segment] = rows;
    if (!segment) return false;
    const id = segment.segment_id;
    // A process of an earlier version indexes segments without counting their points.
    if (segment.state === 'indexed') {
      await tx.query('SELECT telemetry_count_segment($1)', [id]);
      return true;
    }
    // Readers continue meanwhile; nothing writes to a complete segment.
    await tx.query(`CREATE INDEX ON telemetry_segment_${id} (device_id, time)`);
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, prefix)`);
    await tx.query(`CREATE INDEX ON leaf_index_${id} (tenant_id, device_id)`);
    await tx.query(`ANALYZE telemetry_segment_${id}, leaf_index_${id}`);
    await tx.query('SELECT telemetry_count_segment($1)', [id]);
    await tx.query(`UPDATE telemetry_segments SET state = 'indexed', indexed_at = now() WHERE segment_id = $1`, [id]);
    return true;
  });
}

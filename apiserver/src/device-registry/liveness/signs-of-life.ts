// Writes signs of life into the rows of devices. Parameters are columns: tenants, devices, and in seconds since 1970 the last point,
// the last sign of any kind, when the device goes offline, and when its stream closed; null: never.
import type { Transaction } from '../../platform/database/database.ts';

/** A device whose signs are written. */
export interface WrittenSigns {
  readonly tenant_id: string;
  readonly device_id: string;
  readonly before: 'online' | 'offline';
  readonly after: 'online' | 'offline';
  readonly last_seen: Date | null;
}

// The length of plain parameters is known to the planner, which would otherwise compare each row of one CTE with each of the other.
const given = `SELECT tenant_id, device_id, to_timestamp(seen) AS seen, to_timestamp(alive) AS alive,
    to_timestamp(ends) AS ends, to_timestamp(closed) AS closed, place
  FROM unnest($1::text[], $2::uuid[], $3::float8[], $4::float8[], $5::float8[], $6::float8[])
    WITH ORDINALITY AS g (tenant_id, device_id, seen, alive, ends, closed, place)`;

/** Locks the rows of devices that no other transaction has locked, and returns the places of the other devices from 0. */
export async function lockedPlaces(tx: Transaction, columns: readonly unknown[][]): Promise<number[]> {
  const { rows } = await tx.query<{ place: number }>(
    `WITH given AS (${given}), free AS (
       SELECT g.place FROM devices d JOIN given g USING (tenant_id, device_id)
       WHERE d.deleted_at IS NULL ORDER BY d.tenant_id, d.device_id FOR NO KEY UPDATE OF d SKIP LOCKED
     )
     SELECT g.place::int4 FROM given g JOIN devices d USING (tenant_id, device_id)
     WHERE d.deleted_at IS NULL AND g.place NOT IN (SELECT place FROM free)`,
    [...columns],
  );
  return rows.map(({ place }) => place - 1);
}

const times = `last_seen = greatest(d.last_seen, g.seen),
  alive_at = greatest(d.alive_at, g.alive),
  offline_at = CASE WHEN d.alive_at IS NULL OR greatest(g.alive, g.closed) >= d.alive_at THEN g.ends ELSE d.offline_at END`;

/** Writes signs of those devices that are online. Returns the places of the others from 0, which remain to be decided. */
export async function prolong(tx: Transaction, columns: readonly unknown[][]): Promise<number[]> {
  if (columns[0]!.length === 0) return [];
  const { rows } = await tx.query<{ place: number }>(
    `WITH given AS (${given}), written AS (
       UPDATE devices d SET ${times}
       FROM given g WHERE d.tenant_id = g.tenant_id AND d.device_id = g.device_id AND d.status = 'online' AND d.deleted_at IS NULL
       RETURNING g.place
     )
     SELECT place FROM generate_series(1, cardinality($2::uuid[])) AS place WHERE place NOT IN (SELECT place FROM written)`,
    [...columns],
  );
  return rows.map(({ place }) => place - 1);
}

/** Writes signs of devices, of which an offline one goes online only with a point. Returns the status before and after. */
export async function writeAndDecide(tx: Transaction, columns: readonly unknown[][]): Promise<WrittenSigns[]> {
  const { rows } = await tx.query<WrittenSigns>(
    `WITH given AS (${given}), held AS (
       SELECT d.tenant_id, d.device_id, d.status AS before FROM devices d JOIN given USING (tenant_id, device_id)
       WHERE d.deleted_at IS NULL ORDER BY d.tenant_id, d.device_id FOR NO KEY UPDATE OF d
     )
     UPDATE devices d SET ${times},
       -- A point that was written before does not bring back a device that has been silent since.
       status = CASE WHEN g.seen IS NOT NULL AND (d.last_seen IS NULL OR g.seen > d.last_seen) AND g.ends > now()
                     THEN 'online' ELSE d.status END
     FROM given g JOIN held h USING (tenant_id, device_id)
     WHERE d.tenant_id = g.tenant_id AND d.device_id = g.device_id
     RETURNING d.tenant_id, d.device_id, h.before, d.status AS after, d.last_seen`,
    [...columns],
  );
  return rows;
}

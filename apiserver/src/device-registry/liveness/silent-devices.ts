// Finds devices that are online without a sign of life: those that a process expects to be silent, and all of them page by page in the
// order in which they are stored, because an index by time would make each sign of life cost more, and reading them by another index
// costs several times as much.
import type { Transaction } from '../../platform/database/database.ts';
import { columns } from '../../platform/statements/columns.ts';

interface DeviceKey {
  readonly tenant_id: string;
  readonly device_id: string;
}

/** A device that went offline, with the time of its last point. */
export type SilentDevice = DeviceKey & { readonly last_seen: Date | null };

/** SQL: takes the devices offline that a query locks. */
const takeOffline = (silent: string): string =>
  `WITH silent AS (${silent})
   UPDATE devices d SET status = 'offline' FROM silent s
   WHERE d.tenant_id = s.tenant_id AND d.device_id = s.device_id
   RETURNING d.tenant_id, d.device_id, d.last_seen`;

/** Takes those of the devices offline that are silent, and returns them. */
export async function takeSilentOffline(
  tx: Transaction,
  devices: readonly { readonly tenantId: string; readonly deviceId: string }[],
): Promise<SilentDevice[]> {
  const { rows } = await tx.query<SilentDevice & Record<string, unknown>>(
    takeOffline(`
       SELECT d.tenant_id, d.device_id FROM unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id)
       JOIN devices d USING (tenant_id, device_id)
       WHERE d.status = 'online' AND d.offline_at <= now() AND d.deleted_at IS NULL
       ORDER BY d.tenant_id, d.device_id FOR NO KEY UPDATE OF d SKIP LOCKED`),
    columns(devices, 'tenantId', 'deviceId'),
  );
  return rows;
}

/** A position in the table of the devices. What a step costs does not grow with their number. */
export class SilentDevices {
  private first = 0;
  private readonly blocks: number;

  /** A page is so many blocks of the table. */
  constructor(blocks: number) {
    this.blocks = blocks;
  }

  /**
   * Takes at most `limit` silent devices offline and returns them, with the time of their last point. `isEnd` reports whether the page is
   * done: the next step begins the following one, or starts over after the last. A device whose row is moved past the page
   * meanwhile is found in the next pass.
   */
  async takeOffline(tx: Transaction, limit: number): Promise<{ devices: SilentDevice[]; isEnd: boolean }> {
    const end = this.first + this.blocks;
    const [{ rows }, size] = await Promise.all([
      tx.query<SilentDevice & Record<string, unknown>>(
        takeOffline(`
           SELECT tenant_id, device_id FROM devices
           WHERE ctid >= $2::tid AND ctid < $3::tid
             AND status = 'online' AND offline_at <= now() AND deleted_at IS NULL
           ORDER BY tenant_id, device_id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED`),
        [limit, `(${this.first},0)`, `(${end},0)`],
      ),
      tx.query<{ blocks: number }>(
        `SELECT (pg_relation_size('devices') / current_setting('block_size')::int4)::float8 AS blocks`,
      ),
    ]);
    const isEnd = rows.length < limit;
    if (isEnd) this.first = end < size.rows[0]!.blocks ? end : 0;
    return { devices: rows, isEnd };
  }

  /** Leaves a page that is not done to the next pass, so that silent devices that keep coming there do not hold up the others. */
  leavePage(): void {
    this.first += this.blocks;
  }
}

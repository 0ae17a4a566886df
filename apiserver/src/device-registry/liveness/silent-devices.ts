// Finds devices that are online without a sign of life: page by page through those online, in order of their ids, because
// an index by time would make each sign of life cost more.
import type { Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';

interface DeviceKey {
  readonly tenant_id: string;
  readonly device_id: string;
}

const firstKey: DeviceKey = { tenant_id: '', device_id: nilId };

/** A position among the devices that are online. What a step costs does not grow with their number. */
export class SilentDevices {
  private after = firstKey;
  /** Last device of the page; undefined: the page goes to the end. */
  private last: DeviceKey | undefined;
  private isInPage = false;
  private readonly pageSize: number;
  private readonly limit: number;

  /** A page holds `pageSize` online devices, of which a step takes at most `limit`. */
  constructor(pageSize: number, limit: number) {
    this.pageSize = pageSize;
    this.limit = limit;
  }

  /**
   * Takes silent devices offline and returns them, with the time of their last point. `isEnd` reports whether the page is
   * done: the next step begins the following one, or starts over after the last.
   */
  async takeOffline(tx: Transaction): Promise<{ devices: (DeviceKey & { last_seen: Date | null })[]; isEnd: boolean }> {
    if (!this.isInPage) this.last = await this.lastOfPage(tx);
    const { after, last } = this;
    const { rows } = await tx.query<DeviceKey & { last_seen: Date | null }>(
      `WITH silent AS (
         SELECT tenant_id, device_id FROM devices
         WHERE status = 'online' AND offline_at <= now() AND deleted_at IS NULL
           AND (tenant_id, device_id) > ($2, $3::uuid) ${last ? 'AND (tenant_id, device_id) <= ($4, $5::uuid)' : ''}
         ORDER BY tenant_id, device_id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
       )
       UPDATE devices d SET status = 'offline' FROM silent s
       WHERE d.tenant_id = s.tenant_id AND d.device_id = s.device_id
       RETURNING d.tenant_id, d.device_id, d.last_seen`,
      [this.limit, after.tenant_id, after.device_id, ...(last ? [last.tenant_id, last.device_id] : [])],
    );
    const isEnd = rows.length < this.limit;
    this.isInPage = !isEnd;
    if (isEnd) this.after = this.last ?? firstKey;
    return { devices: rows, isEnd };
  }

  private async lastOfPage(tx: Transaction): Promise<DeviceKey | undefined> {
    const { rows } = await tx.query<DeviceKey>(
      `SELECT tenant_id, device_id FROM devices WHERE status = 'online' AND (tenant_id, device_id) > ($1, $2::uuid)
       ORDER BY tenant_id, device_id OFFSET $3 LIMIT 1`,
      [this.after.tenant_id, this.after.device_id, this.pageSize - 1],
    );
    return rows[0];
  }
}

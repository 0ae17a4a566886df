// Finds devices that are online without a sign of life: those that a process expects to be silent, and all page by page through those online, in order of their ids, because
// an index by time would make each sign of life cost more.
import { columns } from '../../platform/database/columns.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';

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
  async takeOffline(tx: Transaction): Promise<{ devices: SilentDevice[]; isEnd: boolean }> {
    if (!this.isInPage) {
      const { last, hasSilent } = await this.nextPage(tx);
      this.last = last;
      // Most pages have no silent device, and are read once.
      if (!hasSilent) {
        this.after = last ?? firstKey;
        return { devices: [], isEnd: true };
      }
    }
    const { after, last } = this;
    const { rows } = await tx.query<SilentDevice & Record<string, unknown>>(
      takeOffline(`
         SELECT tenant_id, device_id FROM devices
         WHERE status = 'online' AND offline_at <= now() AND deleted_at IS NULL
           AND (tenant_id, device_id) > ($2, $3::uuid) ${last ? 'AND (tenant_id, device_id) <= ($4, $5::uuid)' : ''}
         ORDER BY tenant_id, device_id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED`),
      [this.limit, after.tenant_id, after.device_id, ...(last ? [last.tenant_id, last.device_id] : [])],
    );
    const isEnd = rows.length < this.limit;
    this.isInPage = !isEnd;
    if (isEnd) this.after = this.last ?? firstKey;
    return { devices: rows, isEnd };
  }

  /** Returns the last device of the next page, or undefined if the page goes to the end, and whether any of the page is silent. */
  private async nextPage(tx: Transaction): Promise<{ last: DeviceKey | undefined; hasSilent: boolean }> {
    const { rows } = await tx.query<{ tenant_id: string | null; device_id: string | null; has_silent: boolean | null }>(
      `WITH page AS MATERIALIZED (
         SELECT tenant_id, device_id, offline_at <= now() AS is_silent FROM devices
         WHERE status = 'online' AND deleted_at IS NULL AND (tenant_id, device_id) > ($1, $2::uuid)
         ORDER BY tenant_id, device_id LIMIT $3
       )
       SELECT last.tenant_id, last.device_id, whole.has_silent FROM (SELECT bool_or(is_silent) AS has_silent FROM page) AS whole
       LEFT JOIN (SELECT tenant_id, device_id FROM page OFFSET $3 - 1) AS last ON true`,
      [this.after.tenant_id, this.after.device_id, this.pageSize],
    );
    const { tenant_id, device_id, has_silent: hasSilent } = rows[0]!;
    return { last: tenant_id && device_id ? { tenant_id, device_id } : undefined, hasSilent: hasSilent === true };
  }
}

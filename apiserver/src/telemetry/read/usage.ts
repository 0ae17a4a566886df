// Counts what devices sent. Accepted points are counted from the rows of their segments: once when a segment is indexed
// (write/segments.ts), and until then whenever usage is read, so that no crash can lose or repeat any. Rejected points
// leave no rows: they are counted in memory and written every second. Triggers keep the sums of each tenant
// (migrations/0125_usage_of_tenants.sql).
import { Loop } from '../../platform/background/loop.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { columns } from '../../platform/statements/columns.ts';
import { holdOffPurges } from '../../policies/tenant-reader.ts';

/** Accepted and rejected points and stored bytes of a device or tenant. */
export interface UsageCounts {
  readonly accepted: number;
  readonly rejected: number;
  readonly storedBytes: number;
}

const writeEveryMilliseconds = 800;
const devicesPerStatement = 1000;

interface Rejections {
  readonly tenantId: string;
  readonly deviceId: string;
  count: number;
}

/** The usage of each device. */
export class Usage {
  private readonly database: Database;
  private readonly logger: Logger;
  private rejections = new Map<string, Rejections>();
  private readonly loop: Loop;

  constructor(database: Database, logger: Logger) {
    this.database = database;
    this.logger = logger;
    this.loop = new Loop(logger, 'counting of rejected points', writeEveryMilliseconds, () => this.write());
  }

  start(): void {
    this.loop.start();
  }

  /** Writes pending counts and stops. */
  async stop(): Promise<void> {
    await this.loop.stop();
    await this.write();
  }

  /** Counts rejected points; `deviceId` is empty if they named no device of the tenant. */
  reject(tenantId: string, deviceId: string, count = 1): void {
    const key = `${tenantId}/${deviceId}`;
    const held = this.rejections.get(key);
    if (held) held.count += count;
    // The points that name no device of the tenant are counted under the nil UUID.
    else this.rejections.set(key, { tenantId, deviceId: deviceId || nilId, count });
  }

  /** Returns the usage of a device, or of the whole tenant; rejected points are up to a second behind. */
  async of(tenantId: string, deviceId: string | undefined): Promise<UsageCounts> {
    return this.database.read(tenantId, (tx) => readUsage(tx, tenantId, deviceId));
  }

  private async write(): Promise<void> {
    const pending = [...this.rejections.values()];
    this.rejections = new Map();
    for (const some of pagesOf(pending, devicesPerStatement)) {
      await this.add(some).catch((error: unknown) => {
        this.logger.warn({ err: error }, 'failed to count rejected points; keeping the counts in memory');
        for (const { tenantId, deviceId, count } of some) this.reject(tenantId, deviceId, count);
      });
    }
  }

  private async add(rejections: readonly Rejections[]): Promise<void> {
    await this.database.system(async (tx) => {
      // Counts wait for as long as this process is cut off from the database: longer than a purge waits for earlier requests.
      const purged = await holdOffPurges(tx, [...new Set(rejections.map(({ tenantId }) => tenantId))]);
      // Every process takes locks in the same order.
      await tx.query(
        `INSERT INTO telemetry_usage AS held (tenant_id, device_id, rejected)
         SELECT * FROM unnest($1::text[], $2::uuid[], $3::int8[]) AS given (tenant, device, rejected)
         ORDER BY tenant, device
         ON CONFLICT (tenant_id, device_id) DO UPDATE SET rejected = held.rejected + excluded.rejected`,
        columns(
          rejections.filter(({ tenantId }) => !purged.has(tenantId)),
          ...(['tenantId', 'deviceId', 'count'] as const),
        ),
      );
    });
  }
}

/** Returns the usage of a device, or of the whole tenant, except for rejected points that are not written yet. */
async function readUsage(tx: Transaction, tenantId: string, deviceId: string | undefined): Promise<UsageCounts> {
  // One statement, one snapshot: a segment is either counted or not.
  const { rows } = await tx.query<{ accepted: number; rejected: number; stored_bytes: number }>(
    `SELECT (counted.accepted + uncounted.accepted)::float8 AS accepted, counted.rejected::float8 AS rejected,
       (counted.stored_bytes + uncounted.stored_bytes)::float8 AS stored_bytes
     FROM telemetry_uncounted_usage($2::uuid) AS uncounted, (${countedUsage(deviceId)}) AS counted`,
    [tenantId, deviceId ?? null],
  );
  const row = rows[0]!;
  return { accepted: row.accepted, rejected: row.rejected, storedBytes: row.stored_bytes };
}

/** Counts what was rejected from deleted devices that have no points as that of unknown devices. */
export async function forgetRejectionsOf(
  tx: Transaction,
  tenantIds: readonly string[],
  deviceIds: readonly string[],
): Promise<void> {
  await tx.query(
    `SELECT telemetry_forget_rejections(tenant_id, array_agg(device_id ORDER BY device_id))
     FROM unnest($1::text[], $2::uuid[]) AS g (tenant_id, device_id) GROUP BY tenant_id ORDER BY tenant_id`,
    [tenantIds, deviceIds],
  );
}

const countedUsage = (deviceId?: string): string => `SELECT coalesce(sum(accepted), 0) AS accepted,
    coalesce(sum(rejected), 0) AS rejected, coalesce(sum(stored_bytes), 0) AS stored_bytes
  FROM ${deviceId === undefined ? 'telemetry_tenant_usage' : 'telemetry_usage'}
  WHERE tenant_id = $1${deviceId === undefined ? '' : ' AND device_id = $2'}`;

/**
 * Returns the points that a tenant has sent since midnight (UTC), by their arrival, those that were refused because of
 * points_per_day, and the bytes it has stored.
 */
export async function readTenantUsage(
  tx: Transaction,
  tenantId: string,
): Promise<{ readonly pointsToday: number; readonly pointsRefusedToday: number; readonly storedBytes: number }> {
  const { rows } = await tx.query<{ today: number; refused: number; stored_bytes: number }>(
    `SELECT (uncounted.today + coalesce(days.accepted, 0))::float8 AS today,
       coalesce(quota.refused, 0)::float8 AS refused,
       (counted.stored_bytes + uncounted.stored_bytes)::float8 AS stored_bytes
     FROM telemetry_uncounted_usage($2::uuid) AS uncounted CROSS JOIN (${countedUsage()}) AS counted
       LEFT JOIN telemetry_days AS days ON days.tenant_id = $1 AND days.day = (now() AT TIME ZONE 'UTC')::date
       LEFT JOIN telemetry_quotas AS quota ON quota.tenant_id = $1 AND quota.day = (now() AT TIME ZONE 'UTC')::date`,
    [tenantId, null],
  );
  const { today: pointsToday, refused: pointsRefusedToday, stored_bytes: storedBytes } = rows[0]!;
  return { pointsToday, pointsRefusedToday, storedBytes };
}

/** Deletes the counts of days that are more than a week ago. */
export async function forgetOldDays(database: Database): Promise<void> {
  await database.system((tx) =>
    tx.query(`DELETE FROM telemetry_days WHERE day < (now() AT TIME ZONE 'UTC')::date - 7`),
  );
}

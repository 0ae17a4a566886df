// Anchors the results of updates that devices reported: each becomes one point of its device. The flush that commits the point
// also writes its place into the row of the result, so that a crash at any moment neither loses nor doubles it.
import { resultsLock, tryLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { waitingTenants } from '../../platform/statements/waiting-tenants.ts';
import type { Devices, TelemetryDevice } from '../points/devices.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { TelemetryWriter } from '../write/group-commit.ts';
import type { AnchorQuota } from './anchor-quota.ts';

/** Dependencies. */
export interface ResultParts {
  readonly database: Database;
  readonly devices: Devices;
  readonly writer: Pick<TelemetryWriter, 'append'>;
  readonly quota: Pick<AnchorQuota, 'reserve'>;
}

interface ResultRow {
  tenant_id: string;
  result_id: string;
  device_id: string;
  time: bigint;
  payload: string;
  data_hash: Buffer;
}

/** Maximum results that are anchored at once. */
export const resultsAtOnce = 1000;

/**
 * Anchors the oldest waiting results, an equal number of each tenant, and returns how many. Those of one tenant that cannot be
 * stored do not keep those of others from it; then throws. Returns 0 while another process does: only one at a time, because of
 * two flushes with the same result the second would fail.
 */
export function anchorNextResults(parts: ResultParts): Promise<number> {
  return parts.database.system(async (tx) => {
    if (!(await tryLock(tx, resultsLock))) return 0;
    const rows = await waitingResults(tx);
    const anchor = async (ofTenant: readonly ResultRow[]) => parts.writer.append(await pointsOf(parts, ofTenant));
    const outcomes = await Promise.allSettled([...Map.groupBy(rows, (row) => row.tenant_id).values()].map(anchor));
    const failed = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failed) throw failed.reason;
    return rows.length;
  });
}

async function waitingResults(tx: Transaction): Promise<ResultRow[]> {
  const { rows } = await tx.query<ResultRow & Record<string, unknown>>(
    `WITH RECURSIVE ${waitingTenants('ota_results', 'batch_id IS NULL')}
     SELECT r.* FROM waiting w, LATERAL (
       SELECT tenant_id, result_id, device_id, time, payload, data_hash FROM ota_results
       WHERE tenant_id = w.tenant_id AND batch_id IS NULL
       ORDER BY result_id LIMIT greatest(1, $1::int4 / (SELECT count(tenant_id) FROM waiting))) AS r`,
    [resultsAtOnce],
  );
  return rows;
}

/** Makes the points of one tenant's results. */
async function pointsOf({ devices, quota }: ResultParts, rows: readonly ResultRow[]): Promise<AcceptedPoint[]> {
  const tenantId = rows[0]!.tenant_id;
  const known = await devices.lookup(tenantId, [...new Set(rows.map((row) => row.device_id))]);
  const isOwnAnchor = (row: ResultRow) => known.get(row.device_id)?.anchoringMode === 'per_event';
  const wanted = rows.filter(isOwnAnchor).length;
  let left = wanted === 0 ? 0 : await quota.reserve(tenantId, wanted);
  return rows.map((row) => {
    const device = known.get(row.device_id) ?? absentDevice(row.device_id);
    // A result is never rejected. Beyond the tenant's quota it shares a transaction with others.
    const sharesAnchor = isOwnAnchor(row) && left-- <= 0;
    return toPoint(row, sharesAnchor ? { ...device, anchoringMode: 'merkle' } : device);
  });
}

/** A device that does not exist, or no longer. */
export const absentDevice = (deviceId: string): TelemetryDevice => ({
  deviceId,
  name: '',
  type: '',
  profileId: '',
  gatewayDeviceId: '',
  customerId: '',
  effectiveTags: {},
  telemetrySchema: undefined,
  anchoringMode: 'merkle',
});

function toPoint(row: ResultRow, device: TelemetryDevice): AcceptedPoint {
  const values = JSON.parse(row.payload) as { string_values: Record<string, string> };
  return {
    tenantId: row.tenant_id,
    device,
    time: { seconds: Number(row.time / 1_000_000_000n), nanoseconds: Number(row.time % 1_000_000_000n) },
    numericValues: {},
    stringValues: values.string_values,
    payload: row.payload,
    dataHash: row.data_hash.toString('latin1'),
    resultId: row.result_id,
  };
}

// The SQL of the results that devices reported.
import { resultsChannel } from '../../../../platform/database/channels.ts';
import type { Transaction } from '../../../../platform/database/database.ts';

/** A result to be written. */
export interface NewResult {
  readonly resultId: string;
  /** Empty for an assignment of the device's own. */
  readonly rolloutId: string;
  readonly deviceId: string;
  /** Nanoseconds since 1970. */
  readonly time: bigint;
  readonly payload: string;
  readonly dataHash: Buffer;
}

/** Writes results, all in one statement. */
export async function addResults(tx: Transaction, tenantId: string, results: readonly NewResult[]): Promise<void> {
  if (results.length === 0) return;
  await tx.query(
    `INSERT INTO ota_results (tenant_id, result_id, rollout_id, device_id, time, payload, data_hash)
     SELECT $1, result_id, nullif(rollout_id, '')::uuid, device_id, time, payload, data_hash
     FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::int8[], $6::text[], $7::bytea[])
       AS r (result_id, rollout_id, device_id, time, payload, data_hash)`,
    [
      tenantId,
      results.map((result) => result.resultId),
      results.map((result) => result.rolloutId),
      results.map((result) => result.deviceId),
      results.map((result) => result.time),
      results.map((result) => result.payload),
      results.map((result) => result.dataHash),
    ],
  );
  tx.hint(resultsChannel);
}

/** Returns the payload of a device's last result, or undefined. */
export async function lastResult(tx: Transaction, tenantId: string, deviceId: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ payload: string }>(
    `SELECT payload FROM ota_results WHERE tenant_id = $1 AND device_id = $2 ORDER BY result_id DESC LIMIT 1`,
    [tenantId, deviceId],
  );
  return rows[0]?.payload;
}

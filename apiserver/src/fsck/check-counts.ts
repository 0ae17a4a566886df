// Checks the numbers of devices, and the sums that limits are compared with, which are kept beside the rows.
import { nilId } from '../platform/ids.ts';
import { type Check, type CheckParts, Findings, type Outcome, snapshot } from './check.ts';

const mostRows = 1000;

interface WrongCount {
  tenant_id: string;
  id: string;
  held: number;
  actual: number;
}

/** Yields a check of each kind of number. */
export function* countChecks(parts: CheckParts): Generator<Check> {
  yield () => checkDeviceCounts(parts);
  yield () => checkProfileCounts(parts);
  yield () => checkKeptSums(parts);
}

/** Compares the numbers by group, profile, status and firmware version, including changes that are not added up yet. */
const wrongDeviceCounts = `
  WITH actual AS (
    SELECT tenant_id, '${nilId}'::uuid AS group_id, coalesce(profile_id, '${nilId}') AS profile_id, status, firmware_version,
      count(*) AS devices
    FROM devices WHERE deleted_at IS NULL AND ($1::text IS NULL OR tenant_id = $1) GROUP BY 1, 2, 3, 4, 5
    UNION ALL
    SELECT tenant_id, group_id, coalesce(profile_id, '${nilId}'), status, firmware_version, count(*)
    FROM devices JOIN device_group_members USING (tenant_id, device_id)
    WHERE deleted_at IS NULL AND ($1::text IS NULL OR tenant_id = $1) GROUP BY 1, 2, 3, 4, 5
  ), held AS (
    SELECT tenant_id, group_id, profile_id, status, firmware_version, sum(devices) AS devices FROM (
      SELECT tenant_id, group_id, profile_id, status, firmware_version, devices FROM device_counts
      UNION ALL
      SELECT tenant_id, group_id, profile_id, status, firmware_version, devices FROM device_count_changes
    ) AS c
    -- Of a group that was deleted, changes may be left.
    WHERE ($1::text IS NULL OR tenant_id = $1) AND (group_id = '${nilId}' OR EXISTS (
      SELECT FROM device_groups g WHERE g.tenant_id = c.tenant_id AND g.group_id = c.group_id))
    GROUP BY 1, 2, 3, 4, 5
  )
  SELECT tenant_id, concat_ws('/', nullif(group_id, '${nilId}'), nullif(profile_id, '${nilId}'), status, firmware_version) AS id,
    coalesce(h.devices, 0)::int4 AS held, coalesce(a.devices, 0)::int4 AS actual
  FROM actual a FULL JOIN held h USING (tenant_id, group_id, profile_id, status, firmware_version)
  WHERE coalesce(h.devices, 0) <> coalesce(a.devices, 0) ORDER BY 1, 2 LIMIT ${mostRows}`;

const wrongProfileCounts = `
  WITH actual AS (
    SELECT tenant_id, profile_id, count(*) AS devices FROM devices
    WHERE deleted_at IS NULL AND profile_id IS NOT NULL AND ($1::text IS NULL OR tenant_id = $1) GROUP BY 1, 2
  ), held AS (
    SELECT tenant_id, profile_id, sum(devices) AS devices FROM profile_devices
    WHERE $1::text IS NULL OR tenant_id = $1 GROUP BY 1, 2
  )
  SELECT tenant_id, profile_id::text AS id, coalesce(h.devices, 0)::int4 AS held, coalesce(a.devices, 0)::int4 AS actual
  FROM actual a FULL JOIN held h USING (tenant_id, profile_id)
  WHERE coalesce(h.devices, 0) <> coalesce(a.devices, 0) ORDER BY 1, 2 LIMIT ${mostRows}`;

/** Tables whose rows are counted in kept_sums. */
const countedTables = ['alarms', 'assets', 'customers', 'device_groups', 'entity_views', 'users'];

const wrongKeptSums = `
  WITH actual AS (
    ${countedTables
      .map(
        (table) => `SELECT tenant_id, '${table}' AS kind, '${nilId}'::uuid AS owner_id, count(*) AS amount FROM ${table}
          WHERE tenant_id IS NOT NULL AND ($1::text IS NULL OR tenant_id = $1) GROUP BY 1`,
      )
      .join(' UNION ALL ')}
    UNION ALL
    SELECT tenant_id, 'webhook_bytes', webhook_id, sum(bytes) FROM webhook_deliveries
    WHERE bytes IS NOT NULL AND ($1::text IS NULL OR tenant_id = $1) GROUP BY 1, 3
  ), held AS (
    SELECT tenant_id, kind, owner_id, sum(amount) AS amount FROM kept_sums
    WHERE $1::text IS NULL OR tenant_id = $1 GROUP BY 1, 2, 3
  )
  SELECT tenant_id, concat_ws('/', kind, nullif(owner_id, '${nilId}')) AS id, coalesce(h.amount, 0)::float8 AS held,
    coalesce(a.amount, 0)::float8 AS actual
  FROM actual a FULL JOIN held h USING (tenant_id, kind, owner_id)
  WHERE coalesce(h.amount, 0) <> coalesce(a.amount, 0) ORDER BY 1, 2 LIMIT ${mostRows}`;

function checkDeviceCounts({ database, tenantId }: CheckParts): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows: counts } = await tx.query<{ rows: number }>(
      'SELECT count(*)::int4 AS rows FROM device_counts WHERE $1::text IS NULL OR tenant_id = $1',
      [tenantId ?? null],
    );
    const { rows } = await tx.query<WrongCount & Record<string, unknown>>(wrongDeviceCounts, [tenantId ?? null]);
    return { checked: { device_counts: counts[0]!.rows }, findings: findingsOf('device_count', rows) };
  });
}

function checkProfileCounts({ database, tenantId }: CheckParts): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows: counts } = await tx.query<{ rows: number }>(
      'SELECT count(DISTINCT profile_id)::int4 AS rows FROM profile_devices WHERE $1::text IS NULL OR tenant_id = $1',
      [tenantId ?? null],
    );
    const { rows } = await tx.query<WrongCount & Record<string, unknown>>(wrongProfileCounts, [tenantId ?? null]);
    return { checked: { profile_counts: counts[0]!.rows }, findings: findingsOf('profile_count', rows) };
  });
}

function checkKeptSums({ database, tenantId }: CheckParts): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const { rows: counts } = await tx.query<{ rows: number }>(
      'SELECT count(*)::int4 AS rows FROM kept_sums WHERE $1::text IS NULL OR tenant_id = $1',
      [tenantId ?? null],
    );
    const { rows } = await tx.query<WrongCount & Record<string, unknown>>(wrongKeptSums, [tenantId ?? null]);
    return { checked: { kept_sums: counts[0]!.rows }, findings: findingsOf('kept_sum', rows) };
  });
}

const units = { device_count: ' devices', profile_count: ' devices', kept_sum: '' } as const;

function findingsOf(kind: keyof typeof units, rows: readonly WrongCount[]): Findings['all'] {
  const findings = new Findings();
  for (const { tenant_id: tenantId, id, held, actual } of rows) {
    findings.add(kind, id, tenantId, `${held}${units[kind]} are counted, but there are ${actual}`);
  }
  return findings.all;
}

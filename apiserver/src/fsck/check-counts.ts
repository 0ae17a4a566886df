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
  for (const kind of kinds) yield () => check(parts, kind);
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
export const tablesWithKeptNumbers = ['alarms', 'assets', 'customers', 'device_groups', 'entity_views', 'users'];

const wrongKeptSums = `
  WITH actual AS (
    ${tablesWithKeptNumbers
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

/** Each kind of number: what it counts, how many are kept, and which of them are wrong, of the tenant $1 or of all. */
const kinds = [
  { kind: 'device_count', counted: ' devices', kept: 'count(*)', table: 'device_counts', wrong: wrongDeviceCounts },
  {
    kind: 'profile_count',
    counted: ' devices',
    kept: 'count(DISTINCT profile_id)',
    table: 'profile_devices',
    wrong: wrongProfileCounts,
  },
  { kind: 'kept_sum', counted: '', kept: 'count(*)', table: 'kept_sums', wrong: wrongKeptSums },
] as const;

function check({ database, tenantId }: CheckParts, { kind, counted, kept, table, wrong }: (typeof kinds)[number]) {
  return snapshot(database, async (tx): Promise<Outcome> => {
    const values = [tenantId ?? null];
    const { rows: counts } = await tx.query<{ rows: number }>(
      `SELECT ${kept}::int4 AS rows FROM ${table} WHERE $1::text IS NULL OR tenant_id = $1`,
      values,
    );
    const { rows } = await tx.query<WrongCount & Record<string, unknown>>(wrong, values);
    const findings = new Findings();
    for (const { tenant_id, id, held, actual } of rows) {
      findings.add(kind, id, tenant_id, `${held}${counted} are counted, but there are ${actual}`);
    }
    return { checked: { [`${kind}s`]: counts[0]!.rows }, findings: findings.all };
  });
}

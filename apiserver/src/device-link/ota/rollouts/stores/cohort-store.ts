// The SQL of cohorts: the eligible devices of a rollout in the order in which it reaches them. Every statement goes by the primary
// key or by a list of its values, so that no plan depends on statistics, which a fleet that was just loaded does not have.
import type { Transaction } from '../../../../platform/database/database.ts';
import { isCovered, rank } from '../decisions/cohort.ts';
import type { RolloutState } from '../decisions/rollout-state.ts';

/** A device to be added to a cohort. */
export interface CohortEntry {
  readonly deviceId: string;
  /** It is in the rollout already. */
  readonly member: boolean;
}

/** A device of a cohort with its place. */
export interface CohortRow {
  readonly rank: Buffer;
  readonly device_id: string;
  readonly late: boolean;
}

type Row = CohortRow & Record<string, unknown>;

/**
 * Adds devices to the cohort of a locked rollout unless they are in it. One that joins before the last covered device and is not
 * a member makes scheduling due. The caller saves the state.
 */
export async function addToCohort(
  tx: Transaction,
  state: RolloutState,
  entries: readonly CohortEntry[],
): Promise<void> {
  if (entries.length === 0) return;
  // In the order of the index, so that neighbours find their pages in memory.
  const placed = entries
    .map(({ deviceId, member }) => ({ deviceId, member, place: rank(state.packageId, deviceId) }))
    .sort((a, b) => Buffer.compare(a.place, b.place));
  const { rows } = await tx.query<{ added: number; covered: number; late: number }>(
    `WITH added AS (
       INSERT INTO ota_rollout_cohort (tenant_id, rollout_id, rank, device_id, late)
       SELECT $1, $2, rank, device_id, late FROM unnest($3::bytea[], $4::uuid[], $5::boolean[]) AS c (rank, device_id, late)
       ON CONFLICT DO NOTHING RETURNING rank, late)
     SELECT count(*)::int4 AS added, (count(*) FILTER (WHERE rank <= $6))::int4 AS covered,
       (count(*) FILTER (WHERE late))::int4 AS late FROM added`,
    [
      state.tenantId,
      state.rolloutId,
      placed.map(({ place }) => place),
      placed.map(({ deviceId }) => deviceId),
      placed.map(({ place, member }) => isCovered(state.coveredRank, place) && !member),
      state.coveredRank ?? null,
    ],
  );
  const { added, covered, late } = rows[0]!;
  state.cohortCount += added;
  state.coveredCount += covered;
  if (late > 0) state.schedulingDue = true;
}

/** Removes devices from the cohort of a locked rollout. The caller saves the state. */
export async function removeFromCohort(
  tx: Transaction,
  state: RolloutState,
  deviceIds: readonly string[],
): Promise<void> {
  if (deviceIds.length === 0) return;
  const { rows } = await tx.query<{ rank: Buffer }>(
    `DELETE FROM ota_rollout_cohort WHERE tenant_id = $1 AND rollout_id = $2 AND rank = ANY($3::bytea[]) RETURNING rank`,
    [state.tenantId, state.rolloutId, deviceIds.map((deviceId) => rank(state.packageId, deviceId))],
  );
  state.cohortCount -= rows.length;
  state.coveredCount -= rows.filter((row) => isCovered(state.coveredRank, row.rank)).length;
}

/** New eligible devices of a rollout. */
export interface Newcomers {
  readonly rolloutId: string;
  readonly packageId: string;
  readonly deviceIds: readonly string[];
}

/**
 * Counts new devices as eligible for rollouts that have not completed, and adds them to their cohorts. In one round trip, because
 * claims of a profile wait here for one another.
 */
export async function addNewcomers(tx: Transaction, tenantId: string, newcomers: readonly Newcomers[]): Promise<void> {
  const rolloutIds = newcomers.map(({ rolloutId }) => rolloutId);
  const entries = newcomers.flatMap(({ rolloutId, packageId, deviceIds }) =>
    deviceIds.map((deviceId) => ({ rolloutId, deviceId, rank: rank(packageId, deviceId) })),
  );
  if (entries.length === 0) return;
  await Promise.all([
    // A statement of its own: the next one then sees where the last covered device is now.
    tx.query(
      `SELECT FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND phase <> 'completed'
       ORDER BY rollout_id FOR UPDATE`,
      [tenantId, rolloutIds],
    ),
    tx.query(
      `WITH newcomers AS (
         SELECT n.*, coalesce(n.rank <= r.covered_rank, false) AS late
         FROM unnest($2::uuid[], $3::bytea[], $4::uuid[]) AS n (rollout_id, rank, device_id)
         CROSS JOIN LATERAL (
           SELECT covered_rank FROM ota_rollouts
           WHERE tenant_id = $1 AND rollout_id = n.rollout_id AND phase <> 'completed' LIMIT 1) AS r
       ), added AS (
         INSERT INTO ota_rollout_cohort (tenant_id, rollout_id, rank, device_id, late)
         SELECT $1, rollout_id, rank, device_id, late FROM newcomers ON CONFLICT DO NOTHING RETURNING rollout_id, rank, late
       )
       UPDATE ota_rollouts r SET eligible = r.eligible + n.count, cohort_count = r.cohort_count + n.added,
         covered_count = r.covered_count + n.late, scheduling_due = r.scheduling_due OR n.late > 0,
         awaits_scheduling = r.phase = 'active',
         revision = r.revision + 1, updated_at = now()
       FROM (SELECT rollout_id, count(*)::int4 AS count, count(a.rank)::int4 AS added,
               (count(*) FILTER (WHERE a.late))::int4 AS late
             FROM newcomers LEFT JOIN added a USING (rollout_id, rank) GROUP BY rollout_id) AS n
       WHERE r.tenant_id = $1 AND r.rollout_id = n.rollout_id`,
      [
        tenantId,
        entries.map(({ rolloutId }) => rolloutId),
        entries.map((entry) => entry.rank),
        entries.map(({ deviceId }) => deviceId),
      ],
    ),
  ]);
}

/** Returns the first devices of a cohort after a place (undefined: from the beginning), in order. */
export async function listCohortAfter(
  tx: Transaction,
  state: RolloutState,
  after: Buffer | undefined,
  limit: number,
): Promise<CohortRow[]> {
  const { rows } = await tx.query<Row>(
    `SELECT rank, device_id, late FROM ota_rollout_cohort
     WHERE tenant_id = $1 AND rollout_id = $2 AND rank > $3 ORDER BY rank LIMIT $4`,
    [state.tenantId, state.rolloutId, after ?? Buffer.alloc(0), limit],
  );
  return rows;
}

/** Returns the first latecomers of a cohort, in order. */
export async function listLate(tx: Transaction, state: RolloutState, limit: number): Promise<CohortRow[]> {
  const { rows } = await tx.query<Row>(
    `SELECT rank, device_id, late FROM ota_rollout_cohort
     WHERE tenant_id = $1 AND rollout_id = $2 AND late ORDER BY rank LIMIT $3`,
    [state.tenantId, state.rolloutId, limit],
  );
  return rows;
}

/** Returns the place so many devices before the last covered one; undefined if there is none. */
export async function placeBefore(tx: Transaction, state: RolloutState, count: number): Promise<Buffer | undefined> {
  const { rows } = await tx.query<{ rank: Buffer }>(
    `SELECT rank FROM ota_rollout_cohort WHERE tenant_id = $1 AND rollout_id = $2 AND rank <= $3
     ORDER BY rank DESC OFFSET $4 LIMIT 1`,
    [state.tenantId, state.rolloutId, state.coveredRank, count],
  );
  return rows[0]?.rank;
}

/** Clears the late mark of these devices, which were scheduled, and of devices that are no longer covered. */
export async function clearLate(tx: Transaction, state: RolloutState, ranks: readonly Buffer[]): Promise<void> {
  await tx.query(
    `UPDATE ota_rollout_cohort SET late = false
     WHERE tenant_id = $1 AND rollout_id = $2 AND late AND (rank = ANY($3::bytea[]) OR rank > $4)`,
    [state.tenantId, state.rolloutId, ranks, state.coveredRank ?? Buffer.alloc(0)],
  );
}

/** Deletes the first rows of a cohort after a place, up to a limit. Returns the place of the last one, or undefined if none was left. */
export async function dropCohort(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  after: Buffer,
  limit: number,
): Promise<Buffer | undefined> {
  const { rows } = await tx.query<{ rank: Buffer }>(
    `SELECT rank FROM ota_rollout_cohort WHERE tenant_id = $1 AND rollout_id = $2 AND rank > $3 ORDER BY rank LIMIT $4`,
    [tenantId, rolloutId, after, limit],
  );
  if (rows.length === 0) return undefined;
  await tx.query(
    `DELETE FROM ota_rollout_cohort WHERE tenant_id = $1 AND rollout_id = $2 AND rank = ANY($3::bytea[])`,
    [tenantId, rolloutId, rows.map((row) => row.rank)],
  );
  return rows.at(-1)!.rank;
}

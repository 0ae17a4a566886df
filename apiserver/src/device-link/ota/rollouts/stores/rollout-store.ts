// The SQL of rollouts, which are locked, changed and saved as a whole, so that there is one way to change a rollout.
import { fromJson, type JsonObject } from '@bufbuild/protobuf';
import { OtaPolicySchema, type Window } from '@kellet/proto/es/kellet/v1/common_pb';
import { notifyChanged } from '../../../../control/changes.ts';
import type { Busy } from '../../../../platform/background/fair-worker.ts';
import type { Clock } from '../../../../platform/clock.ts';
import { holdLock, profileRolloutsLock } from '../../../../platform/database/advisory-locks.ts';
import { rolloutWorkChannel } from '../../../../platform/database/channels.ts';
import type { Transaction } from '../../../../platform/database/database.ts';
import { notFound } from '../../../../platform/errors.ts';
import { isId } from '../../../../platform/ids.ts';
import { planAlongIndexes, rowsOf } from '../../../../platform/statements/index-plans.ts';
import { waitingTenants } from '../../../../platform/statements/waiting-tenants.ts';
import { wakeRollout } from '../../../commands/commands.ts';
import type { Phase } from '../decisions/pause-decision.ts';
import { fromColumn, toColumn } from '../decisions/rollout-spec.ts';
import { awaitsScheduling, pendingDevices, type RolloutEvent, type RolloutState } from '../decisions/rollout-state.ts';
import { publishChanges } from './rollout-events.ts';

/** Columns that never change after the insertion, and those that the store itself changes. */
const fixedColumns = {
  tenantId: 'tenant_id',
  rolloutId: 'rollout_id',
  name: 'name',
  namespace: 'namespace',
  displayName: 'display_name',
  packageId: 'package_id',
  profileId: 'profile_id',
  revision: 'revision',
  createdAt: 'created_at',
  updatedAt: 'updated_at',
} as const;

/** The columns that saveRollout writes. A field that is missing here does not compile. */
const savedColumns: Readonly<
  Record<Exclude<keyof RolloutState, keyof typeof fixedColumns | 'changedDevices'>, string>
> = {
  rollbackPackageId: 'rollback_package_id',
  spec: 'spec',
  phase: 'phase',
  outcome: 'outcome',
  pauseConditions: 'pause_conditions',
  expandedToPercent: 'expanded_to_percent',
  loweredFromPercent: 'lowered_from_percent',
  resourceUid: 'resource_uid',
  acknowledgedFailures: 'acknowledged_failures',
  acknowledgedScheduled: 'acknowledged_scheduled',
  rollbackRequestedAt: 'rollback_requested_at',
  rollbackRequestedBy: 'rollback_requested_by',
  stepIndex: 'step_index',
  approvedStepIndex: 'approved_step_index',
  eligible: 'eligible',
  scheduledInitially: 'scheduled_initially',
  scheduled: 'scheduled',
  sent: 'sent',
  succeeded: 'succeeded',
  failed: 'failed',
  timedOut: 'timed_out',
  skipped: 'skipped',
  removed: 'removed',
  stageScheduled: 'stage_scheduled',
  stageFailed: 'stage_failed',
  lastTerminalAt: 'last_terminal_at',
  nextSendAt: 'next_send_at',
  nextHandOutAt: 'next_hand_out_at',
  rollbackPending: 'rollback_pending',
  cohortReady: 'cohort_ready',
  cohortCursor: 'cohort_cursor',
  cohortCount: 'cohort_count',
  schedulingDue: 'scheduling_due',
  coveredCount: 'covered_count',
  coveredRank: 'covered_rank',
  pendingWork: 'pending_work',
  workCursor: 'work_cursor',
  resumes: 'resumes',
};

const savedList = [...Object.values(savedColumns), 'awaits_scheduling'].join(', ');

type RolloutRow = Record<string, unknown> & { spec: JsonObject };

function toState(row: RolloutRow): RolloutState {
  const fields = Object.entries({ ...fixedColumns, ...savedColumns }).map(([field, column]) => [
    field,
    row[column] ?? undefined,
  ]);
  const state = Object.fromEntries(fields) as unknown as RolloutState;
  state.spec = fromColumn(row.spec);
  return { ...state, changedDevices: [] };
}

/** Returns the saved columns as JSON, to write them and to detect whether a rollout has changed. */
export const snapshot = (state: RolloutState): string =>
  JSON.stringify({
    ...Object.fromEntries(
      Object.entries(savedColumns).map(([field, column]) => [column, state[field as keyof RolloutState]]),
    ),
    spec: toColumn(state.spec),
    awaits_scheduling: awaitsScheduling(state),
    // The text form of bytea.
    covered_rank: state.coveredRank && `\\x${state.coveredRank.toString('hex')}`,
  });

/** Returns a rollout, or undefined. */
export async function findRollout(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  lock: '' | 'FOR SHARE' | 'FOR UPDATE' = '',
): Promise<RolloutState | undefined> {
  if (!isId(rolloutId)) return undefined;
  // What follows on a lock works on many devices, in pages.
  const planned = lock === '' ? undefined : planAlongIndexes(tx);
  const found = tx.query<RolloutRow>(`SELECT * FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $2 ${lock}`, [
    tenantId,
    rolloutId,
  ]);
  const [{ rows }] = await Promise.all([found, planned]);
  return rows[0] && toState(rows[0]);
}

/** Returns a rollout for reading. Throws NOT_FOUND. */
export async function getRollout(tx: Transaction, tenantId: string, rolloutId: string): Promise<RolloutState> {
  const state = await findRollout(tx, tenantId, rolloutId);
  if (!state) throw notFound('rollout_id');
  return state;
}

/** Returns a rollout, locked until the transaction ends. Everything about it changes under this lock. Throws NOT_FOUND. */
export async function lockRollout(tx: Transaction, tenantId: string, rolloutId: string): Promise<RolloutState> {
  const state = await findRollout(tx, tenantId, rolloutId, 'FOR UPDATE');
  if (!state) throw notFound('rollout_id');
  return state;
}

/**
 * Returns those of the rollouts that have not completed, locked until the transaction ends. Several rollouts are only locked here,
 * so that all transactions do it in the same order.
 */
export async function lockRollouts(
  tx: Transaction,
  tenantId: string,
  rolloutIds: readonly string[],
): Promise<RolloutState[]> {
  const found = tx.query<RolloutRow>(
    `SELECT * FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND phase <> 'completed'
     ORDER BY rollout_id FOR UPDATE`,
    [tenantId, rolloutIds],
  );
  const [{ rows }] = await Promise.all([found, planAlongIndexes(tx)]);
  return rows.map(toState);
}

/** Returns those of the rollouts that exist. */
export async function findRollouts(
  tx: Transaction,
  tenantId: string,
  rolloutIds: readonly string[],
): Promise<RolloutState[]> {
  const { rows } = await tx.query<RolloutRow>(
    `SELECT r.* FROM ${rowsOf('$2::uuid[]')} AS wanted (rollout_id), LATERAL (
       SELECT * FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = wanted.rollout_id LIMIT 1) AS r`,
    [tenantId, rolloutIds],
  );
  return rows.map(toState);
}

/** Returns rollouts in order of creation after the id `after`, one more than the page. */
export async function listRollouts(
  tx: Transaction,
  tenantId: string,
  filter: { phase?: string; packageId?: string; profileId?: string },
  after: string | undefined,
  size: number,
): Promise<RolloutState[]> {
  const { rows } = await tx.query<RolloutRow>(
    `SELECT * FROM ota_rollouts
     WHERE tenant_id = $1
       AND ($2::text IS NULL OR phase = $2)
       AND ($3::uuid IS NULL OR package_id = $3)
       AND ($4::uuid IS NULL OR profile_id = $4)
       AND ($5::uuid IS NULL OR (created_at, rollout_id) >
         (SELECT created_at, rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $5))
     ORDER BY created_at, rollout_id LIMIT $6`,
    [tenantId, filter.phase, filter.packageId, filter.profileId, after, size + 1],
  );
  return rows.map(toState);
}

/** Returns the name of another rollout of this profile and package type that has not completed, if any. */
export async function otherRunningRollout(
  tx: Transaction,
  tenantId: string,
  profileId: string,
  type: string,
  exceptRolloutId: string,
): Promise<string | undefined> {
  const { rows } = await tx.query<{ display_name: string }>(
    `SELECT r.display_name FROM ota_rollouts r JOIN ota_packages p USING (tenant_id, package_id)
     WHERE r.tenant_id = $1 AND r.profile_id = $2 AND p.type = $3 AND r.phase <> 'completed' AND r.rollout_id <> $4
     ORDER BY r.created_at LIMIT 1`,
    [tenantId, profileId, type, exceptRolloutId],
  );
  return rows[0]?.display_name;
}

/** Inserts a new rollout and returns it, locked as by `lockRollout`. */
export async function insertRollout(
  tx: Transaction,
  rollout: Pick<RolloutState, keyof RolloutIdentity | 'rollbackPackageId' | 'phase' | 'spec'>,
): Promise<RolloutState> {
  const { rows } = await tx.query<RolloutRow>(
    `INSERT INTO ota_rollouts
       (tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, rollback_package_id, phase, spec)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING *`,
    [...identityOf(rollout), rollout.rollbackPackageId, rollout.phase, toColumn(rollout.spec)],
  );
  return toState(rows[0]!);
}

/** The fields that identify a rollout. */
export type RolloutIdentity = Pick<
  RolloutState,
  'tenantId' | 'rolloutId' | 'name' | 'namespace' | 'displayName' | 'packageId' | 'profileId'
>;

const identityOf = (rollout: RolloutIdentity): string[] => [
  rollout.tenantId,
  rollout.rolloutId,
  rollout.name,
  rollout.namespace,
  rollout.displayName,
  rollout.packageId,
  rollout.profileId,
];

/** Restores the identity of a rollout, if it exists and someone has changed it. */
export async function restoreIdentity(tx: Transaction, rollout: RolloutIdentity): Promise<void> {
  await tx.query(
    `UPDATE ota_rollouts SET name = $3, namespace = $4, display_name = $5, package_id = $6, profile_id = $7
     WHERE tenant_id = $1 AND rollout_id = $2
       AND (name, namespace, display_name, package_id, profile_id) IS DISTINCT FROM ($3, $4, $5, $6::uuid, $7::uuid)`,
    identityOf(rollout),
  );
}

/** Returns the ids of the rollouts of a custom resource that have not completed. */
export async function listRunningOf(
  tx: Transaction,
  { tenantId, namespace, name }: Pick<RolloutIdentity, 'tenantId' | 'namespace' | 'name'>,
): Promise<string[]> {
  const { rows } = await tx.query<{ rollout_id: string }>(
    `SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND phase <> 'completed'`,
    [tenantId, namespace, name],
  );
  return rows.map((row) => row.rollout_id);
}

/** Counts the rollouts to a profile that have not completed. */
export async function countRolloutsOfProfile(tx: Transaction, tenantId: string, profileId: string): Promise<number> {
  const { rows } = await tx.query<{ rollouts: number }>(
    `SELECT count(*)::int4 AS rollouts FROM ota_rollouts
     WHERE tenant_id = $1 AND profile_id = $2 AND phase <> 'completed'`,
    [tenantId, profileId],
  );
  return rows[0]!.rollouts;
}

/** Returns the windows of those of the rollouts whose devices wait for commands: the rollout's own, otherwise its profile's. */
export async function windowsOf(
  tx: Transaction,
  tenantId: string,
  states: readonly RolloutState[],
): Promise<Map<string, Window>> {
  const waiting = states.filter((state) => state.phase === 'active' && pendingDevices(state) > 0);
  const asking = waiting.flatMap(({ spec, profileId }) => (spec.window ? [] : [profileId]));
  const { rows } =
    asking.length === 0
      ? { rows: [] }
      : await tx.query<{ profile_id: string; policy: JsonObject }>(
          `SELECT profile_id, document->'ota_policy' AS policy FROM profiles
           WHERE tenant_id = $1 AND profile_id = ANY($2::uuid[]) AND document->'ota_policy' ? 'window'`,
          [tenantId, asking],
        );
  const ofProfiles = new Map(rows.map((row) => [row.profile_id, fromJson(OtaPolicySchema, row.policy).window!]));
  return new Map(
    waiting.flatMap(({ rolloutId, spec, profileId }) => {
      const window = spec.window ?? ofProfiles.get(profileId);
      return window ? [[rolloutId, window] as const] : [];
    }),
  );
}

/** Returns the name of the custom resource of a profile that exists. */
export async function profileResourceName(tx: Transaction, tenantId: string, profileId: string): Promise<string> {
  const { rows } = await tx.query<{ resource_name: string }>(
    `SELECT resource_name FROM profiles WHERE tenant_id = $1 AND profile_id = $2`,
    [tenantId, profileId],
  );
  return rows[0]!.resource_name;
}

/** Keeps other rollouts of a profile from being created until the transaction ends. */
export async function lockProfileRollouts(tx: Transaction, tenantId: string, profileId: string): Promise<void> {
  await holdLock(tx, profileRolloutsLock(tenantId, profileId));
}

/**
 * Saves a rollout, raises its revision, notifies the operator and those who do its work, and puts its events into the outbox. The
 * row is locked by this transaction.
 */
export async function saveRollout(
  tx: Transaction,
  state: RolloutState,
  clock: Clock,
  ...events: (RolloutEvent | undefined)[]
): Promise<void> {
  const written = tx.query<{ phase_before: Phase; updated_at: Date }>(
    `UPDATE ota_rollouts r SET (${savedList}) = (SELECT ${savedList} FROM jsonb_populate_record(NULL::ota_rollouts, $3)),
       revision = r.revision + 1, updated_at = now()
     FROM (SELECT phase FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $2) AS before
     WHERE r.tenant_id = $1 AND r.rollout_id = $2 RETURNING before.phase AS phase_before, r.updated_at`,
    [state.tenantId, state.rolloutId, snapshot(state)],
  );
  state.revision += 1n;
  const notified = notifyChanged(tx, 'OtaRollout', state.tenantId, state.namespace, state.name);
  if (state.pendingWork !== '' || awaitsScheduling(state)) wakeRolloutWork(tx);
  const published = publishChanges(tx, state, events, clock);
  const [{ rows }] = await Promise.all([written, notified, published]);
  const { phase_before: phaseBefore, updated_at: updatedAt } = rows[0]!;
  state.updatedAt = updatedAt;
  if (phaseBefore !== state.phase) wakeRollout(tx, state.tenantId, state.rolloutId);
}

/** Saves a rollout that differs from its snapshot of before, and publishes its changed devices in any case. */
export async function saveIfChanged(
  tx: Transaction,
  state: RolloutState,
  before: string,
  clock: Clock,
  ...events: (RolloutEvent | undefined)[]
): Promise<void> {
  if (snapshot(state) !== before) await saveRollout(tx, state, clock, ...events);
  else await publishChanges(tx, state, [], clock);
}

/** Has the eligible devices of a package's running rollouts determined again, because its compatibility changed. */
export async function recountRollouts(tx: Transaction, tenantId: string, packageId: string): Promise<void> {
  const { rows: profiles } = await tx.query<{ profile_id: string }>(
    `SELECT DISTINCT profile_id FROM ota_rollouts WHERE tenant_id = $1 AND package_id = $2 AND phase <> 'completed'
     ORDER BY profile_id`,
    [tenantId, packageId],
  );
  // Changes of devices that were judged by the former compatibility commit first.
  for (const { profile_id: profileId } of profiles) await lockProfileRollouts(tx, tenantId, profileId);
  const { rows } = await tx.query<{ namespace: string; name: string }>(
    `WITH held AS (
       SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND package_id = $2 AND phase <> 'completed'
       ORDER BY rollout_id FOR UPDATE
     )
     UPDATE ota_rollouts r SET cohort_ready = false, cohort_cursor = NULL, awaits_scheduling = phase = 'active',
       revision = revision + 1 FROM held h
     WHERE r.tenant_id = $1 AND r.rollout_id = h.rollout_id RETURNING r.namespace, r.name`,
    [tenantId, packageId],
  );
  for (const { namespace, name } of rows) await notifyChanged(tx, 'OtaRollout', tenantId, namespace, name);
  if (rows.length > 0) wakeRolloutWork(tx);
}

/** Wakes the processes that do the work of rollouts once the transaction commits. */
export function wakeRolloutWork(tx: Transaction): void {
  tx.hint(rolloutWorkChannel);
}

/** Rollouts of a tenant among which a turn chooses. */
const chosenAmong = 1000;

/**
 * Returns up to `limit` rollouts with work, `ofTenant` of each tenant with those in `busy`, none of the tenants in `except`, and none
 * of `others`; first those of tenants with few in `busy`. Random ones, so that several processes work on different ones.
 */
export async function listWithWork(
  tx: Transaction,
  given: {
    readonly limit: number;
    readonly ofTenant: number;
    readonly except: readonly string[];
    readonly busy: Busy;
    readonly others: readonly string[];
  },
): Promise<Pick<RolloutIdentity, 'tenantId' | 'rolloutId'>[]> {
  const hasWork = `(pending_work <> '' OR awaits_scheduling)`;
  const { rows } = await tx.query<{ tenant_id: string; rollout_id: string }>(
    `WITH RECURSIVE ${waitingTenants('ota_rollouts', hasWork)}
     SELECT tenant_id, rollout_id
     FROM waiting LEFT JOIN unnest($4::text[], $5::int4[]) AS busy (tenant, running) ON tenant = tenant_id, LATERAL (
       SELECT rollout_id, row_number() OVER () AS turn FROM (
         SELECT rollout_id FROM (
           SELECT rollout_id FROM ota_rollouts r
           WHERE r.tenant_id = waiting.tenant_id AND ${hasWork} AND rollout_id <> ALL ($6::uuid[]) LIMIT ${chosenAmong}) AS first
         ORDER BY random() LIMIT greatest(0, $2::int4 - coalesce(running, 0))) AS chosen) AS due
     WHERE tenant_id <> ALL ($3)
     ORDER BY coalesce(running, 0) + turn, random() LIMIT $1`,
    [given.limit, given.ofTenant, given.except, given.busy.tenants, given.busy.running, given.others],
  );
  return rows.map((row) => ({ tenantId: row.tenant_id, rolloutId: row.rollout_id }));
}

/** Notes that no device of a locked rollout is to be scheduled. Nobody else reads that: it is no change of the rollout. */
export async function endScheduling(tx: Transaction, tenantId: string, rolloutId: string): Promise<void> {
  await tx.query(`UPDATE ota_rollouts SET awaits_scheduling = false WHERE tenant_id = $1 AND rollout_id = $2`, [
    tenantId,
    rolloutId,
  ]);
}

/** Has an active rollout whose scheduling is due scheduled, if an earlier release, which knows no such work, has saved it. */
export async function beginScheduling(tx: Transaction, tenantId: string, rolloutId: string): Promise<void> {
  const { rowCount } = await tx.query(
    `UPDATE ota_rollouts SET awaits_scheduling = true WHERE tenant_id = $1 AND rollout_id = $2 AND NOT awaits_scheduling`,
    [tenantId, rolloutId],
  );
  if (rowCount) wakeRolloutWork(tx);
}

/** Notes that the cohort of a completed rollout has been deleted. Nobody reads that: it is no change of the rollout. */
export async function endWork(tx: Transaction, tenantId: string, rolloutId: string): Promise<void> {
  await tx.query(
    `UPDATE ota_rollouts SET pending_work = '', cohort_count = 0 WHERE tenant_id = $1 AND rollout_id = $2
       AND pending_work = 'drop_cohort'`,
    [tenantId, rolloutId],
  );
}

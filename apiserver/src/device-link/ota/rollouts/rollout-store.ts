// Rows of rollouts: locked, changed as a whole and saved as a whole, so that there is one way in which a rollout changes.
import { fromJson, toJson } from '@bufbuild/protobuf';
import { OtaRolloutSpecSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { notifyChanged } from '../../../control/changes.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Transaction } from '../../../platform/database/database.ts';
import { notFound } from '../../../platform/errors.ts';
import { isId } from '../../../platform/ids.ts';
import { enqueue } from '../../../platform/events/outbox.ts';
import { wakeRollout } from '../../commands/commands.ts';
import type { PauseCondition, Phase } from './progress.ts';
import type { RolloutEvent, RolloutState } from './rollout-state.ts';

interface RolloutRow {
  tenant_id: string;
  rollout_id: string;
  name: string;
  namespace: string;
  display_name: string;
  package_id: string;
  profile_id: string;
  rollback_package_id: string | null;
  spec: Record<string, never>;
  phase: Phase;
  outcome: RolloutState['outcome'];
  pause_conditions: PauseCondition[];
  expanded_to_percent: number;
  acknowledged_failures: number;
  acknowledged_scheduled: number;
  rollback_requested_at: Date | null;
  rollback_requested_by: string;
  step_index: number;
  approved_step_index: number;
  eligible: number;
  scheduled_initially: number;
  scheduled: number;
  sent: number;
  succeeded: number;
  failed: number;
  timed_out: number;
  skipped: number;
  removed: number;
  stage_scheduled: number;
  stage_failed: number;
  last_terminal_at: Date | null;
  next_send_at: Date | null;
  next_hand_out_at: Date | null;
  rollback_pending: number;
  scheduling_due: boolean;
  covered_count: number;
  covered_rank: Buffer | null;
  revision: bigint;
  created_at: Date;
  updated_at: Date;
}

function toState(row: RolloutRow): RolloutState {
  return {
    tenantId: row.tenant_id,
    rolloutId: row.rollout_id,
    name: row.name,
    namespace: row.namespace,
    displayName: row.display_name,
    packageId: row.package_id,
    profileId: row.profile_id,
    rollbackPackageId: row.rollback_package_id ?? undefined,
    spec: fromJson(OtaRolloutSpecSchema, row.spec, { ignoreUnknownFields: true }),
    phase: row.phase,
    outcome: row.outcome,
    pauseConditions: row.pause_conditions,
    expandedToPercent: row.expanded_to_percent,
    acknowledgedFailures: row.acknowledged_failures,
    acknowledgedScheduled: row.acknowledged_scheduled,
    rollbackRequestedAt: row.rollback_requested_at ?? undefined,
    rollbackRequestedBy: row.rollback_requested_by,
    stepIndex: row.step_index,
    approvedStepIndex: row.approved_step_index,
    eligible: row.eligible,
    scheduledInitially: row.scheduled_initially,
    scheduled: row.scheduled,
    sent: row.sent,
    succeeded: row.succeeded,
    failed: row.failed,
    timedOut: row.timed_out,
    skipped: row.skipped,
    removed: row.removed,
    stageScheduled: row.stage_scheduled,
    stageFailed: row.stage_failed,
    lastTerminalAt: row.last_terminal_at ?? undefined,
    nextSendAt: row.next_send_at ?? undefined,
    nextHandOutAt: row.next_hand_out_at ?? undefined,
    rollbackPending: row.rollback_pending,
    schedulingDue: row.scheduling_due,
    coveredCount: row.covered_count,
    coveredRank: row.covered_rank ?? undefined,
    revision: row.revision,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
}

/** A rollout without its lock, or undefined. */
export async function findRollout(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<RolloutState | undefined> {
  if (!isId(rolloutId)) return undefined;
  const { rows } = await tx.query<RolloutRow & Record<string, unknown>>(
    `SELECT * FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $2 ${lock}`,
    [tenantId, rolloutId],
  );
  return rows[0] && toState(rows[0]);
}

/** A rollout for reading. Throws NOT_FOUND. */
export async function getRollout(tx: Transaction, tenantId: string, rolloutId: string): Promise<RolloutState> {
  const state = await findRollout(tx, tenantId, rolloutId);
  if (!state) throw notFound('rollout_id');
  return state;
}

/** A rollout with its row locked until the transaction ends: the lock under which everything about it changes. */
export async function lockRollout(tx: Transaction, tenantId: string, rolloutId: string): Promise<RolloutState> {
  const state = await findRollout(tx, tenantId, rolloutId, 'FOR UPDATE');
  if (!state) throw notFound('rollout_id');
  return state;
}

/**
 * Those of these rollouts that have not completed, with their rows locked until the transaction ends. What locks several locks
 * them here, so that all do it in the same order.
 */
export async function lockRollouts(
  tx: Transaction,
  tenantId: string,
  rolloutIds: readonly string[],
): Promise<RolloutState[]> {
  const { rows } = await tx.query<RolloutRow & Record<string, unknown>>(
    `SELECT * FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = ANY($2::uuid[]) AND phase <> 'completed'
     ORDER BY rollout_id FOR UPDATE`,
    [tenantId, rolloutIds],
  );
  return rows.map(toState);
}

/** Rollouts of a tenant in order of creation, one more than the page; `after` is the id of the last one shown. */
export async function listRollouts(
  tx: Transaction,
  tenantId: string,
  filter: { phase?: string; packageId?: string; profileId?: string },
  after: string | undefined,
  size: number,
): Promise<RolloutState[]> {
  const { rows } = await tx.query<RolloutRow & Record<string, unknown>>(
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

/** The rollout of this profile and package type that has not completed, if any, besides the one named. */
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

/** Inserts a new rollout. */
export async function insertRollout(
  tx: Transaction,
  rollout: {
    tenantId: string;
    rolloutId: string;
    name: string;
    namespace: string;
    displayName: string;
    packageId: string;
    profileId: string;
    rollbackPackageId: string | undefined;
    phase: Phase;
    spec: RolloutState['spec'];
  },
): Promise<void> {
  await tx.query(
    `INSERT INTO ota_rollouts
       (tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, rollback_package_id, phase, spec)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
    [
      rollout.tenantId,
      rollout.rolloutId,
      rollout.name,
      rollout.namespace,
      rollout.displayName,
      rollout.packageId,
      rollout.profileId,
      rollout.rollbackPackageId,
      rollout.phase,
      toJson(OtaRolloutSpecSchema, rollout.spec),
    ],
  );
}

/** Writes what names a rollout, when it differs. */
export async function updateIdentity(
  tx: Transaction,
  rollout: Pick<
    RolloutState,
    'tenantId' | 'rolloutId' | 'name' | 'namespace' | 'displayName' | 'packageId' | 'profileId'
  >,
): Promise<void> {
  await tx.query(
    `UPDATE ota_rollouts SET name = $3, namespace = $4, display_name = $5, package_id = $6, profile_id = $7
     WHERE tenant_id = $1 AND rollout_id = $2
       AND (name, namespace, display_name, package_id, profile_id) IS DISTINCT FROM ($3, $4, $5, $6::uuid, $7::uuid)`,
    [
      rollout.tenantId,
      rollout.rolloutId,
      rollout.name,
      rollout.namespace,
      rollout.displayName,
      rollout.packageId,
      rollout.profileId,
    ],
  );
}

/**
 * Saves a changed rollout, raises its revision, tells the operator and puts its events into the outbox. The row is locked by
 * this transaction.
 */
export async function saveRollout(
  tx: Transaction,
  state: RolloutState,
  clock: Clock,
  ...events: (RolloutEvent | undefined)[]
): Promise<void> {
  const written = tx.query<{ phase_before: Phase }>(
    `UPDATE ota_rollouts r SET
       rollback_package_id = $3, spec = $4, phase = $5, outcome = $6, pause_conditions = $7, expanded_to_percent = $8,
       acknowledged_failures = $9, acknowledged_scheduled = $10, rollback_requested_at = $11, rollback_requested_by = $12,
       step_index = $13, approved_step_index = $14, eligible = $15, scheduled = $16, sent = $17, succeeded = $18,
       failed = $19, timed_out = $20, skipped = $21, removed = $22, stage_scheduled = $23, stage_failed = $24,
       last_terminal_at = $25, next_send_at = $26, scheduled_initially = $27, rollback_pending = $28,
       scheduling_due = $29, covered_rank = $30, covered_count = $31, next_hand_out_at = $32,
       revision = r.revision + 1, updated_at = now()
     FROM (SELECT phase FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $2) AS before
     WHERE r.tenant_id = $1 AND r.rollout_id = $2 RETURNING before.phase AS phase_before`,
    [
      state.tenantId,
      state.rolloutId,
      state.rollbackPackageId,
      toJson(OtaRolloutSpecSchema, state.spec),
      state.phase,
      state.outcome,
      JSON.stringify(state.pauseConditions),
      state.expandedToPercent,
      state.acknowledgedFailures,
      state.acknowledgedScheduled,
      state.rollbackRequestedAt,
      state.rollbackRequestedBy,
      state.stepIndex,
      state.approvedStepIndex,
      state.eligible,
      state.scheduled,
      state.sent,
      state.succeeded,
      state.failed,
      state.timedOut,
      state.skipped,
      state.removed,
      state.stageScheduled,
      state.stageFailed,
      state.lastTerminalAt,
      state.nextSendAt,
      state.scheduledInitially,
      state.rollbackPending,
      state.schedulingDue,
      state.coveredRank,
      state.coveredCount,
      state.nextHandOutAt,
    ],
  );
  state.revision += 1n;
  const notified = notifyChanged(tx, 'OtaRollout', state.tenantId, state.namespace, state.name);
  const published = events.map((event) => event && publishRolloutEvent(tx, state, event, clock));
  const [{ rows }] = await Promise.all([written, notified, ...published]);
  if (rows[0]?.phase_before !== state.phase) await wakeRollout(tx, state.tenantId, state.rolloutId);
}

/** Has the eligible devices of a package's running rollouts counted anew: it may be installed on others now. */
export async function recountRollouts(tx: Transaction, tenantId: string, packageId: string): Promise<void> {
  const { rows } = await tx.query<{ namespace: string; name: string }>(
    `WITH held AS (
       SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND package_id = $2 AND phase <> 'completed'
       ORDER BY rollout_id FOR UPDATE
     )
     UPDATE ota_rollouts r SET scheduling_due = true, revision = revision + 1 FROM held h
     WHERE r.tenant_id = $1 AND r.rollout_id = h.rollout_id RETURNING r.namespace, r.name`,
    [tenantId, packageId],
  );
  for (const { namespace, name } of rows) await notifyChanged(tx, 'OtaRollout', tenantId, namespace, name);
}

/** Puts a rollout's event into the outbox: `profile.ota.rollout.<event>.{tenant}.{rollout_id}` (SPEC, Events). */
export async function publishRolloutEvent(
  tx: Transaction,
  state: RolloutState,
  event: RolloutEvent,
  clock: Clock,
): Promise<void> {
  await enqueue(
    tx,
    {
      tenantId: state.tenantId,
      subject: `profile.ota.rollout.${event}.${state.tenantId}.${state.rolloutId}`,
      resource: state.rolloutId,
      data: {
        rollout_id: state.rolloutId,
        name: state.displayName,
        package_id: state.packageId,
        target_profile_id: state.profileId,
        status: state.phase,
        outcome: state.outcome,
        scheduled: state.scheduled,
        succeeded: state.succeeded,
        failed: state.failed,
        timed_out: state.timedOut,
        failure_threshold_percent: state.spec.failureThresholdPercent,
        pause_reasons: state.pauseConditions.map((condition) => condition.reason),
      },
    },
    clock,
  );
}

// Applies the manifest of a rollout to its row. A new rollout gets its canary scheduled in the same call.
import { equals } from '@bufbuild/protobuf';
import {
  OtaRolloutSpecSchema,
  type ObjectMeta,
  type OtaRolloutObservedSchema,
  type OtaRolloutSpec,
} from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { RefusalError, type Applied, type Applier, type LastStep, type Refusal } from '../../../control/applier.ts';
import { takeUp } from '../../../control/applied-versions.ts';
import type { ProfileFacts, ProfileReader } from '../../../policies/profile-reader.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { profileRolloutsLock } from '../../../platform/database/advisory-locks.ts';
import { cancelUndelivered } from '../../commands/commands.ts';
import { unassignUndelivered } from '../assignments/assignments.ts';
import { observe } from './observed.ts';
import { findPackage } from '../packages/package-store.ts';
import { phaseOf } from './progress.ts';
import { turnBack } from './rollback.ts';
import { judgeRollout, requireSigned, wantedRollout, type WantedRollout } from './rollout-judgement.ts';
import {
  beginStage,
  complete,
  effectivePercent,
  pauseIfExceeded,
  settlePhase,
  type RolloutEvent,
  type RolloutState,
} from './rollout-state.ts';
import {
  findRollout,
  insertRollout,
  lockRollout,
  publishRolloutEvent,
  saveRollout,
  updateIdentity,
} from './rollout-store.ts';
import { scheduleDevices } from './scheduling.ts';

type Observed = MessageInitShape<typeof OtaRolloutObservedSchema>;

/** Applies and removes the manifests of rollouts. */
export class RolloutApplier implements Applier<OtaRolloutSpec, Observed> {
  private readonly database: Database;
  private readonly profiles: ProfileReader;
  private readonly clock: Clock;

  constructor(database: Database, profiles: ProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  /**
   * Applies a manifest in one transaction, whatever the size of the fleet: a new rollout gets the first devices of its canary
   * scheduled, and the operator has the others scheduled through AdvanceRollout.
   */
  async apply(meta: ObjectMeta, spec: OtaRolloutSpec, last?: LastStep): Promise<Applied<Observed>> {
    const { tenantId } = meta;
    const wanted = wantedRollout(meta, spec);
    const { id } = wanted;
    // Read before the transaction: a transaction that waited for a second connection would keep its own.
    const profile = await this.profiles.get(tenantId, wanted.profileId);
    return this.database.tenant(tenantId, async (tx) => {
      await takeUp(tx, 'OtaRollout', meta);
      const existing = await findRollout(tx, tenantId, id, 'FOR UPDATE');
      if (existing) {
        await restoreIdentity(tx, wanted);
        await this.update(tx, existing, wanted, profile);
      } else await this.create(tx, wanted, profile);
      const state = await lockRollout(tx, tenantId, id);
      const observed = await observe(tx, state, new Date(this.clock.now()));
      await last?.(tx);
      return { id, observed };
    });
  }

  private async create(tx: Transaction, wanted: WantedRollout, profile: ProfileFacts | undefined): Promise<void> {
    const { meta, spec, id, packageId, profileId, rollbackPackageId } = wanted;
    // Creations of one profile wait for one another, so that the second sees the first.
    await tx.query(`SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, [
      profileRolloutsLock(meta.tenantId, profileId),
    ]);
    const { package_, cohort } = await judgeRollout(tx, wanted, profile);
    await insertRollout(tx, {
      tenantId: meta.tenantId,
      rolloutId: id,
      name: meta.name,
      namespace: meta.namespace,
      displayName: meta.displayName || meta.name,
      packageId,
      profileId,
      rollbackPackageId,
      phase: phaseOf({ completed: false, rollingBack: false, heldBySpec: spec.paused, pauseConditions: [] }),
      spec,
    });
    const state = await lockRollout(tx, meta.tenantId, id);
    await publishRolloutEvent(tx, state, 'started', this.clock);
    state.eligible = cohort.devices.length;
    if (state.phase === 'active') await scheduleDevices(tx, state, cohort, package_, new Date(this.clock.now()));
    await saveRollout(tx, state, this.clock);
  }

  /** Brings an existing row up to its manifest. Policy may change at any time and never restarts anything. */
  private async update(
    tx: Transaction,
    state: RolloutState,
    wanted: WantedRollout,
    profile: ProfileFacts | undefined,
  ): Promise<void> {
    const { spec } = wanted;
    if (state.phase === 'completed') return;
    const events: (RolloutEvent | undefined)[] = [];
    let changed = false;
    if (!equals(OtaRolloutSpecSchema, state.spec, spec)) {
      const wasHeld = state.spec.paused;
      const covered = effectivePercent(state);
      state.spec = spec;
      if (effectivePercent(state) > covered) beginStage(state);
      changed = true;
      settlePhase(state);
      if (wasHeld && state.phase === 'active') events.push('resumed');
    }
    if (await takeRollbackPackage(tx, state, wanted, profile)) changed = true;
    if (spec.rolledBack && state.phase !== 'rolling_back') {
      if (!state.rollbackPackageId) {
        throw new RefusalError('InvalidSpec', 'desiredState: RolledBack needs a rollbackPackageRef');
      }
      events.push(await turnBack(tx, state, 'spec.desiredState', profile, new Date(this.clock.now())));
      changed = true;
    }
    const paused = pauseIfExceeded(state, new Date(this.clock.now()));
    if (changed || paused) await saveRollout(tx, state, this.clock, ...events, paused);
  }

  async remove(meta: ObjectMeta, _detach: boolean): Promise<Refusal | undefined> {
    await this.database.tenant(meta.tenantId, async (tx) => {
      const { rows } = await tx.query<{ rollout_id: string }>(
        `SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 AND namespace = $2 AND name = $3 AND phase <> 'completed'`,
        [meta.tenantId, meta.namespace, meta.name],
      );
      for (const row of rows) {
        const state = await lockRollout(tx, meta.tenantId, row.rollout_id);
        await cancelUndelivered(tx, meta.tenantId, row.rollout_id);
        await unassignUndelivered(tx, meta.tenantId, row.rollout_id);
        await saveRollout(tx, state, this.clock, complete(state, 'cancelled'));
      }
    });
    return undefined;
  }
}

/** Restores the columns that identify a rollout and never change, in case someone has written them. */
async function restoreIdentity(tx: Transaction, { meta, id, packageId, profileId }: WantedRollout): Promise<void> {
  const { tenantId, name, namespace } = meta;
  const displayName = meta.displayName || name;
  await updateIdentity(tx, { tenantId, rolloutId: id, name, namespace, displayName, packageId, profileId });
}

/** Takes the rollback package from the manifest unless devices are rolling back already. Reports whether it changed. */
async function takeRollbackPackage(
  tx: Transaction,
  state: RolloutState,
  { spec, rollbackPackageId }: WantedRollout,
  profile: ProfileFacts | undefined,
): Promise<boolean> {
  if (!rollbackPackageId || state.phase === 'rolling_back') return false;
  if (state.rollbackPackageId === rollbackPackageId) return false;
  const rollback = await findPackage(tx, state.tenantId, rollbackPackageId);
  if (!rollback) {
    const message = `rollbackPackageRef: OtaPackage ${spec.rollbackPackageName} not found`;
    throw new RefusalError('ReferenceNotFound', message);
  }
  requireSigned('rollbackPackageRef', rollback, profile);
  state.rollbackPackageId = rollbackPackageId;
  return true;
}

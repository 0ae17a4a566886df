// Applies the manifest of a rollout to its row. A new rollout gets its canary scheduled in the same call.
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import type { ObjectMeta, OtaRolloutObservedSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { takeUp } from '../../../control/applied-versions.ts';
import { type Applied, type Applier, type LastStep, type Refusal, RefusalError } from '../../../control/applier.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import { findPackage } from '../packages/package-store.ts';
import { phaseOf } from './decisions/pause-decision.ts';
import {
  abandon,
  awaitsScheduling,
  changeSpec,
  coveredNow,
  pauseIfExceeded,
  type RolloutEvent,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { observe } from './observed.ts';
import {
  requireAdmissible,
  requireRollbackPackage,
  type WantedRollout,
  wantedRollout,
} from './planning/rollout-admissibility.ts';
import {
  beginScheduling,
  findRollout,
  insertRollout,
  listRunningOf,
  lockProfileRollouts,
  lockRollouts,
  restoreIdentity,
  saveIfChanged,
  saveRollout,
  snapshot,
} from './stores/rollout-store.ts';
import { fillCohort } from './work/cohort-fill.ts';
import { turnBack } from './work/rollback.ts';
import { scheduleDevices } from './work/scheduling.ts';
import { withdraw } from './work/withdrawal.ts';

type Observed = MessageInitShape<typeof OtaRolloutObservedSchema>;

/** Added to the message of a rollout that had ended when its resource was created again. */
const endedBefore =
  'it ended before this resource was created, and does not run again: create one with another name to update devices';

/** Size up to which a fleet begins at once: its creation fills the cohort too. */
const devicesOfCreation = 4000;

/** Applies and removes the manifests of rollouts. */
export class RolloutApplier implements Applier<OtaRolloutSpec, Observed> {
  private readonly database: Database;
  private readonly profiles: TransactionalProfileReader;
  private readonly clock: Clock;

  constructor(database: Database, profiles: TransactionalProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  /**
   * Applies a manifest in one transaction, whose cost depends on the size of the fleet only in that PostgreSQL counts it. For a
   * small fleet it includes the cohort and the first devices of the canary; the operator has the rest done through
   * AdvanceRollout.
   */
  async apply(meta: ObjectMeta, spec: OtaRolloutSpec, last?: LastStep): Promise<Applied<Observed>> {
    const wanted = wantedRollout(meta, spec);
    const transaction = async (tx: Transaction): Promise<Applied<Observed>> => {
      await takeUp(tx, 'OtaRollout', meta);
      await restoreIdentity(tx, identityOf(wanted));
      const existing = await findRollout(tx, meta.tenantId, wanted.id, 'FOR UPDATE');
      if (existing) await this.update(tx, existing, wanted);
      const state = existing ?? (await this.create(tx, wanted));
      const observed = await observe(tx, state, new Date(this.clock.now()));
      // The record outlives its resource, so that a manifest that is applied again updates no device again.
      const isAnother = state.resourceUid !== '' && meta.uid !== '' && state.resourceUid !== meta.uid;
      if (isAnother) observed.message = `${observed.message}; ${endedBefore}`;
      await last?.(tx);
      return { id: wanted.id, observed };
    };
    return retriedTransactions(this.database)(meta.tenantId, transaction);
  }

  private async create(tx: Transaction, wanted: WantedRollout): Promise<RolloutState> {
    const { meta, spec, profileId, rollbackPackageId } = wanted;
    // Creations of one profile wait for one another, so that the second sees the first.
    await lockProfileRollouts(tx, meta.tenantId, profileId);
    // Read under the lock: a change of the profile is seen here, or finds the rollout.
    const profile = await this.profiles.getWithin(tx, meta.tenantId, profileId);
    const admissible = await requireAdmissible(tx, wanted, profile);
    const phase = phaseOf({ completed: false, rollingBack: false, heldBySpec: spec.paused, pauseConditions: [] });
    const state = await insertRollout(tx, { ...identityOf(wanted), rollbackPackageId, phase, spec });
    state.resourceUid = meta.uid;
    state.eligible = admissible.fleet.eligible;
    if (state.phase === 'active') state.scheduledInitially = coveredNow(state);
    if (admissible.fleet.devices <= devicesOfCreation) {
      while (!state.cohortReady) await fillCohort(tx, state, admissible.profile, admissible.package_);
    }
    if (state.phase === 'active' && state.cohortReady) {
      await scheduleDevices(tx, state, admissible.package_, new Date(this.clock.now()));
    }
    await saveRollout(tx, state, this.clock, 'started');
    return state;
  }

  /** Brings an existing row up to its manifest. Policy may change at any time and never restarts anything. */
  private async update(tx: Transaction, state: RolloutState, wanted: WantedRollout): Promise<void> {
    const { meta, spec } = wanted;
    if (state.phase === 'completed') return;
    const before = snapshot(state);
    const events: (RolloutEvent | undefined)[] = [];
    const wasHeld = state.spec.paused;
    changeSpec(state, spec);
    state.resourceUid = meta.uid || state.resourceUid;
    if (wasHeld && state.phase === 'active') events.push('resumed');
    const profile = await this.profiles.getWithin(tx, state.tenantId, wanted.profileId);
    await takeRollbackPackage(tx, state, wanted, profile);
    if (spec.rolledBack && state.phase !== 'rolling_back') {
      if (!state.rollbackPackageId) {
        throw new RefusalError('InvalidSpec', 'desiredState: RolledBack needs a rollbackPackageRef');
      }
      events.push(await turnBack(tx, state, 'spec.desiredState', profile, new Date(this.clock.now())));
    }
    events.push(pauseIfExceeded(state, new Date(this.clock.now())));
    await saveIfChanged(tx, state, before, this.clock, ...events);
    if (awaitsScheduling(state)) await beginScheduling(tx, state.tenantId, state.rolloutId);
  }

  async remove(meta: ObjectMeta, _detach: boolean): Promise<Refusal | undefined> {
    const { tenantId } = meta;
    const transaction = async (tx: Transaction): Promise<void> => {
      for (const state of await lockRollouts(tx, tenantId, await listRunningOf(tx, meta))) {
        const event = abandon(state);
        if (state.pendingWork === 'withdraw') await withdraw(tx, state, new Date(this.clock.now()));
        await saveRollout(tx, state, this.clock, event);
      }
    };
    await retriedTransactions(this.database)(tenantId, transaction);
    return undefined;
  }
}

const identityOf = ({ meta, id, packageId, profileId }: WantedRollout) => ({
  tenantId: meta.tenantId,
  rolloutId: id,
  name: meta.name,
  namespace: meta.namespace,
  displayName: meta.displayName || meta.name,
  packageId,
  profileId,
});

/** Takes the rollback package from the manifest unless devices are rolling back already. */
async function takeRollbackPackage(
  tx: Transaction,
  state: RolloutState,
  wanted: WantedRollout,
  profile: ProfileFacts | undefined,
): Promise<void> {
  const { rollbackPackageId } = wanted;
  if (!rollbackPackageId || state.phase === 'rolling_back' || state.rollbackPackageId === rollbackPackageId) return;
  await requireRollbackPackage(tx, wanted, await findPackage(tx, state.tenantId, state.packageId), profile);
  state.rollbackPackageId = rollbackPackageId;
}

// Carries out the operator's decisions about rollouts, each in one transaction, and only if the rollout is unchanged.
import type {
  AdvanceRolloutRequest,
  AdvanceRolloutResponseSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { RolloutDriver as RolloutDriverContract } from '../../../control/applier.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retryConflicts } from '../../../platform/database/retry-conflicts.ts';
import { finishRolloutCommands } from '../../commands/commands.ts';
import { beginAttempt } from './attempts.ts';
import { observe } from './observed.ts';
import { findPackage } from '../packages/package-store.ts';
import { maxAttempts } from './policy.ts';
import { reviewFleet } from './fleet-review.ts';
import { listOverdueDevices, markTimedOut, nextDeadline } from './rollout-device-store.ts';
import {
  addPauseCondition,
  allSucceeded,
  beginStep,
  complete,
  countMove,
  countReturn,
  pauseIfExceeded,
  pendingDevices,
  type RolloutState,
} from './rollout-state.ts';
import { lockRollout, saveRollout } from './rollout-store.ts';
import { devicesPerTransaction, placeOf } from './scheduling.ts';

type Response = MessageInitShape<typeof AdvanceRolloutResponseSchema>;
type Action = AdvanceRolloutRequest['action'];

/** Carries out what the operator decides. */
export class RolloutDriver implements RolloutDriverContract {
  private readonly database: Database;
  private readonly profiles: TransactionalProfileReader;
  private readonly clock: Clock;

  constructor(database: Database, profiles: TransactionalProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  async advance(request: AdvanceRolloutRequest): Promise<Response> {
    const { tenantId, rolloutId, action } = request;
    const transaction = async (tx: Transaction): Promise<Response> => {
      const state = await lockRollout(tx, tenantId, rolloutId);
      const profile = await this.profiles.getWithin(tx, tenantId, state.profileId);
      const applied =
        state.revision === request.revision &&
        profile !== undefined &&
        (await this.carryOut(tx, state, action, profile));
      return { applied, observed: await observe(tx, state, new Date(this.clock.now())) };
    };
    return retryConflicts(() => this.database.tenant(tenantId, transaction));
  }

  /** Carries out one action if the state still allows it. Reports whether it did. */
  private async carryOut(
    tx: Transaction,
    state: RolloutState,
    action: Action,
    profile: ProfileFacts,
  ): Promise<boolean> {
    const now = new Date(this.clock.now());
    switch (action.case) {
      case 'scheduleDevices': {
        if (state.phase !== 'active') return false;
        await reviewFleet(tx, state, profile, this.clock);
        return true;
      }
      case 'beginStep': {
        const { stepIndex } = action.value;
        if (state.phase !== 'active' || stepIndex !== state.stepIndex + 1 || stepIndex >= state.spec.steps.length)
          return false;
        if (state.spec.steps[stepIndex]!.approval && state.approvedStepIndex < stepIndex) return false;
        beginStep(state, stepIndex);
        await saveRollout(tx, state, this.clock);
        await reviewFleet(tx, state, profile, this.clock);
        return true;
      }
      case 'requestApproval': {
        const { stepIndex } = action.value;
        if (state.phase !== 'active' || stepIndex !== state.stepIndex + 1 || state.approvedStepIndex >= stepIndex)
          return false;
        if (!addPauseCondition(state, 'StepApproval', 'kellet', now)) return false;
        await saveRollout(tx, state, this.clock);
        return true;
      }
      case 'complete': {
        // Completion is permanent: review the fleet once more, in case a process of an earlier release has changed it.
        await reviewFleet(tx, state, profile, this.clock);
        if (state.phase !== 'active' || !allSucceeded(state) || pendingDevices(state) > 0) return false;
        await saveRollout(tx, state, this.clock, complete(state, 'succeeded'));
        return true;
      }
      case 'finishRollback': {
        // Every device that is rolling back has a deadline until it has reported or timed out.
        if (state.phase !== 'rolling_back' || (await nextDeadline(tx, state.tenantId, state.rolloutId))) return false;
        state.rollbackPending = 0;
        await saveRollout(tx, state, this.clock, complete(state, 'rolled_back'));
        return true;
      }
      case 'expireDevices':
        return this.expireDevices(tx, state, profile, now);
      case undefined:
        return false;
    }
  }

  /**
   * Devices whose deadline has passed get another attempt, or count as timed out, which counts as a failure: at most 500, the
   * longest overdue first. The operator asks again for what is left.
   */
  private async expireDevices(
    tx: Transaction,
    state: RolloutState,
    profile: ProfileFacts,
    now: Date,
  ): Promise<boolean> {
    const overdue = await listOverdueDevices(tx, state.tenantId, state.rolloutId, now, devicesPerTransaction);
    if (overdue.length === 0) return false;
    const attempts = maxAttempts(state.spec, profile.otaPolicy);
    const package_ = await findPackage(tx, state.tenantId, state.packageId);
    const hasAttempts = (device: (typeof overdue)[number]): boolean =>
      package_ !== undefined && !device.rolling_back && device.attempts < attempts && state.phase === 'active';
    const again = overdue.filter(hasAttempts);
    const lost = overdue.filter((device) => !hasAttempts(device));
    for (const device of lost) {
      if (device.rolling_back) countReturn(state, device.state);
      else countMove(state, device.state, 'timed_out', placeOf(state, device), now);
    }
    const { tenantId, rolloutId } = state;
    await markTimedOut(
      tx,
      tenantId,
      rolloutId,
      lost.map((device) => device.device_id),
    );
    // A rollback that is not delivered keeps its command: an offline device still gets it when it returns.
    const ended = lost.flatMap((device) => (device.rolling_back ? [] : [device.correlation_id]));
    await finishRolloutCommands(tx, tenantId, ended, 'expired');
    if (package_) await beginAttempt(tx, state, package_, again, 'timeout', now);
    await saveRollout(tx, state, this.clock, pauseIfExceeded(state, now));
    return true;
  }
}

// Carries out the operator's decisions about rollouts, in transactions of at most 500 devices.
import type { MessageInitShape } from '@bufbuild/protobuf';
import type {
  AdvanceRolloutRequest,
  AdvanceRolloutResponseSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { RolloutDriver as RolloutDriverContract } from '../../../control/applier.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import type { ProfileFacts, TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import { finishRolloutCommands } from '../../commands/commands.ts';
import { findPackage } from '../packages/package-store.ts';
import { maxAttempts } from './decisions/rollout-policy.ts';
import {
  addPauseCondition,
  allSucceeded,
  beginStep,
  complete,
  countMove,
  pauseIfExceeded,
  pendingDevices,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { observe } from './observed.ts';
import {
  clearDeadlines,
  listOverdueDevices,
  markTimedOut,
  nextDeadline,
  type RolloutDeviceRow,
} from './stores/rollout-device-store.ts';
import { lockRollout, saveRollout } from './stores/rollout-store.ts';
import { beginAttempt } from './work/attempts.ts';
import { scheduleNext } from './work/schedule-next.ts';
import { devicesPerTransaction, placeOf } from './work/scheduling.ts';

type Response = MessageInitShape<typeof AdvanceRolloutResponseSchema>;
type Action = AdvanceRolloutRequest['action'];

/** Time after which a call returns although more devices are left, in milliseconds. */
const callMilliseconds = 250;

/** What became of an action; `unfinished`: it was carried out for some devices, and more are due. */
type Outcome = 'refused' | 'done' | 'unfinished';

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
    const until = this.clock.now() + callMilliseconds;
    // It judges by the rows alone, whatever has changed since the operator decided. Otherwise a fleet that reports all the time
    // would keep devices from timing out.
    const isRepeatable = action.case === 'expireDevices';
    const transaction = async (tx: Transaction) => {
      const state = await lockRollout(tx, tenantId, rolloutId);
      const profile = await this.profiles.getWithin(tx, tenantId, state.profileId);
      const outcome =
        profile && (isRepeatable || state.revision === request.revision)
          ? await this.carryOut(tx, state, action, profile)
          : 'refused';
      return { outcome, observed: await observe(tx, state, new Date(this.clock.now())) };
    };
    let applied = false;
    for (;;) {
      const { outcome, observed } = await retriedTransactions(this.database)(tenantId, transaction);
      applied ||= outcome !== 'refused';
      if (outcome !== 'unfinished' || this.clock.now() >= until) return { applied, observed };
    }
  }

  /** Carries out one action if the state still allows it. Returns what became of it. */
  private async carryOut(
    tx: Transaction,
    state: RolloutState,
    action: Action,
    profile: ProfileFacts,
  ): Promise<Outcome> {
    const now = new Date(this.clock.now());
    switch (action.case) {
      case 'beginStep': {
        const { stepIndex } = action.value;
        if (state.phase !== 'active' || stepIndex !== state.stepIndex + 1 || stepIndex >= state.spec.steps.length)
          return 'refused';
        if (state.spec.steps[stepIndex]!.approval && state.approvedStepIndex < stepIndex) return 'refused';
        beginStep(state, stepIndex);
        await saveRollout(tx, state, this.clock);
        await scheduleNext(tx, state, profile, this.clock);
        return 'done';
      }
      case 'requestApproval': {
        const { stepIndex } = action.value;
        if (state.phase !== 'active' || stepIndex !== state.stepIndex + 1 || state.approvedStepIndex >= stepIndex)
          return 'refused';
        if (!addPauseCondition(state, 'StepApproval', 'kellet', now)) return 'refused';
        await saveRollout(tx, state, this.clock);
        return 'done';
      }
      case 'complete': {
        if (state.phase !== 'active' || !allSucceeded(state) || pendingDevices(state) > 0) return 'refused';
        await saveRollout(tx, state, this.clock, complete(state, 'succeeded'));
        return 'done';
      }
      case 'finishRollback': {
        // Every device that is rolling back has a deadline until it has reported or timed out.
        if (state.phase !== 'rolling_back' || state.pendingWork === 'turn_back') return 'refused';
        if (await nextDeadline(tx, state.tenantId, state.rolloutId)) return 'refused';
        await saveRollout(tx, state, this.clock, complete(state, 'rolled_back'));
        return 'done';
      }
      case 'expireDevices':
        return this.expireDevices(tx, state, profile, now);
      case undefined:
        return 'refused';
    }
  }

  /**
   * Devices whose deadline has passed get another attempt, or count as timed out, which counts as a failure: at most 500, the
   * longest overdue first. A device that has not got its rollback command yet stays scheduled, and the rollout no longer waits for
   * it: the timeout of a device runs from delivery.
   */
  private async expireDevices(
    tx: Transaction,
    state: RolloutState,
    profile: ProfileFacts,
    now: Date,
  ): Promise<Outcome> {
    const overdue = await listOverdueDevices(tx, state.tenantId, state.rolloutId, now, devicesPerTransaction);
    if (overdue.length === 0) return 'refused';
    const attempts = maxAttempts(state.spec, profile.otaPolicy);
    const package_ = await findPackage(tx, state.tenantId, state.packageId);
    const hasAttempts = (device: RolloutDeviceRow): boolean =>
      package_ !== undefined && !device.rolling_back && device.attempts < attempts && state.phase === 'active';
    const isAway = (device: RolloutDeviceRow): boolean => device.rolling_back && device.attempts === 0;
    const away = overdue.filter(isAway);
    const again = overdue.filter(hasAttempts);
    const lost = overdue.filter((device) => !isAway(device) && !hasAttempts(device));
    for (const device of lost) {
      if (!device.rolling_back) countMove(state, device.state, 'timed_out', placeOf(state, device), now);
    }
    const { tenantId, rolloutId } = state;
    await clearDeadlines(tx, tenantId, rolloutId, idsOf(away));
    state.changedDevices.push(...(await markTimedOut(tx, tenantId, rolloutId, idsOf(lost), state.resumes)));
    // A rollback's command stays open: a device that returns still gets it.
    const ended = lost.flatMap((device) => (device.rolling_back ? [] : [device.correlation_id]));
    await finishRolloutCommands(tx, tenantId, ended, 'expired');
    if (package_) await beginAttempt(tx, state, package_, again, 'timeout', now);
    await saveRollout(tx, state, this.clock, pauseIfExceeded(state, now));
    return overdue.length < devicesPerTransaction ? 'done' : 'unfinished';
  }
}

const idsOf = (devices: readonly RolloutDeviceRow[]): string[] => devices.map((device) => device.device_id);

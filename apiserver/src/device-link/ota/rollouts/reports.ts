// Reports of devices: the one that crosses the threshold pauses the rollout in its own transaction. Reports of one rollout that
// arrive together share a transaction, so that a fleet reporting at once does not queue for one row's lock.
import type { OtaReport, ReportOtaResponseSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { OtaReport_Status, RolloutDevice_State } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { setVersions } from '../../../device-registry/devices.ts';
import type { MembershipListener } from '../../../device-registry/membership.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { invalidArgument, notFound } from '../../../platform/errors.ts';
import { retryConflicts } from '../../../platform/database/retry-conflicts.ts';
import { finishRolloutCommands, keptError } from '../../rpc/commands.ts';
import { listAssignments } from '../delivery/assignments.ts';
import { findPackageEver } from '../packages/package-store.ts';
import { mayMove, reportedState, stateOnWayBack } from './progress.ts';
import { findRolloutDevice, knownDevices, updateRolloutDevice, type RolloutDeviceRow } from './rollout-devices.ts';
import {
  countMove,
  countReturn,
  noPlace,
  pauseIfExceeded,
  settlePhase,
  type DeviceState,
  type RolloutState,
} from './rollout-state.ts';
import { getRollout, lockRollout, saveRollout } from './rollout-store.ts';
import { placeOf } from './scheduling.ts';

type ReportAnswer = MessageInitShape<typeof ReportOtaResponseSchema>;

interface WaitingReport {
  readonly deviceId: string;
  readonly report: OtaReport;
  resolve(answer: ReportAnswer): void;
  reject(error: unknown): void;
}

/** Characters of a firmware version. */
const longestVersion = 253;

/** Reports taken into one transaction at the most. */
const reportsPerTransaction = 200;

/** Takes reports in and answers each once its transaction has committed. */
export class Reports {
  private readonly database: Database;
  private readonly membership: MembershipListener;
  private readonly clock: Clock;
  private readonly waiting = new Map<string, WaitingReport[]>();

  constructor(database: Database, membership: MembershipListener, clock: Clock) {
    this.database = database;
    this.membership = membership;
    this.clock = clock;
  }

  /**
   * Takes a device's report. Throws NOT_FOUND for a rollout the device is not in, INVALID_ARGUMENT for a report that says
   * nothing.
   */
  async report(tenantId: string, deviceId: string, report: OtaReport): Promise<ReportAnswer> {
    if (report.status === undefined && report.progressPercent === undefined) {
      throw invalidArgument('report: status or progress_percent is required');
    }
    if (report.progressPercent !== undefined && report.progressPercent > 100) {
      throw invalidArgument('progress_percent must be from 0 to 100');
    }
    if (report.status === OtaReport_Status.success && report.firmwareVersion === '') {
      throw invalidArgument('firmware_version is required with a success');
    }
    if (report.firmwareVersion.length > longestVersion) {
      throw invalidArgument(`firmware_version must have at most ${longestVersion} characters`);
    }
    if (report.rolloutId === '') return this.reportOverride(tenantId, deviceId, report);
    return new Promise((resolve, reject) => {
      const key = `${tenantId}/${report.rolloutId}`;
      const queue = this.waiting.get(key);
      const item = { deviceId, report, resolve, reject };
      if (queue) {
        queue.push(item);
      } else {
        this.waiting.set(key, [item]);
        void this.drain(key, tenantId, report.rolloutId);
      }
    });
  }

  /** One transaction after another for one rollout, until nobody waits. */
  private async drain(key: string, tenantId: string, rolloutId: string): Promise<void> {
    for (;;) {
      const queue = this.waiting.get(key)!;
      const batch = queue.splice(0, reportsPerTransaction);
      if (batch.length === 0) {
        this.waiting.delete(key);
        return;
      }
      try {
        const answers = await this.apply(tenantId, rolloutId, batch);
        for (const [index, item] of batch.entries()) {
          const answer = answers[index]!;
          if (answer instanceof Error) item.reject(answer);
          else item.resolve(answer);
        }
      } catch (error) {
        for (const item of batch) item.reject(error);
      }
    }
  }

  private apply(
    tenantId: string,
    rolloutId: string,
    batch: readonly WaitingReport[],
  ): Promise<(ReportAnswer | Error)[]> {
    const work = async (tx: Transaction): Promise<(ReportAnswer | Error)[]> => {
      const [{ profileId, packageId, rollbackPackageId, phase }, known] = await Promise.all([
        getRollout(tx, tenantId, rolloutId),
        knownDevices(tx, tenantId, rolloutId, [...new Set(batch.map(({ deviceId }) => deviceId.toLowerCase()))]),
      ]);
      // A package can be deleted once its rollout has completed, and devices repeat their reports.
      const [update, back] = await Promise.all([
        findPackageEver(tx, tenantId, packageId),
        rollbackPackageId ? findPackageEver(tx, tenantId, rollbackPackageId) : undefined,
      ]);
      // Devices before rollouts (device-registry/membership.ts), and all of them in one statement.
      const changes = await setVersions(tx, tenantId, update?.type ?? 'fw', versionsOf(batch, known));
      // A version makes a device eligible or not for a rollout that it is not in: not for this one, which it is in, nor for
      // another one of its profile and type while this one runs, because there is none.
      const members = new Set(known.flatMap((row) => (row.has_left ? [] : [row.device_id])));
      const elsewhere = changes.filter(
        ({ after }) => phase === 'completed' || after.profileId !== profileId || !members.has(after.deviceId),
      );
      await this.membership.devicesChanged(tx, tenantId, elsewhere);
      const state = await lockRollout(tx, tenantId, rolloutId);
      // It may have been changed for another until the lock was there.
      const wayBack =
        state.rollbackPackageId && state.rollbackPackageId !== rollbackPackageId
          ? await findPackageEver(tx, tenantId, state.rollbackPackageId)
          : back;
      const answers: (ReportAnswer | Error)[] = [];
      const revision = snapshot(state);
      for (const { deviceId, report } of batch) {
        const device = await findRolloutDevice(tx, tenantId, rolloutId, deviceId);
        if (!device) {
          answers.push(notFound('rollout_id'));
          continue;
        }
        const next = await this.applyOne(tx, state, device, report, update?.version ?? '', wayBack?.version ?? '');
        answers.push({ deviceId, rolloutId, state: RolloutDevice_State[next] });
      }
      const event = pauseIfExceeded(state, new Date(this.clock.now()));
      if (snapshot(state) !== revision) await saveRollout(tx, state, this.clock, event);
      return answers;
    };
    return retryConflicts(() => this.database.tenant(tenantId, work));
  }

  /** Applies one report to the device's row and the counters; answers the device's state after it. */
  private async applyOne(
    tx: Transaction,
    state: RolloutState,
    device: RolloutDeviceRow,
    report: OtaReport,
    updateVersion: string,
    rollbackVersion: string,
  ): Promise<DeviceState> {
    const now = new Date(this.clock.now());
    const write = (change: Parameters<typeof updateRolloutDevice>[4]) =>
      updateRolloutDevice(tx, state.tenantId, state.rolloutId, device.device_id, change);
    const running = device.state === 'scheduled' || device.state === 'sent' || device.state === 'downloading';
    if (report.status === undefined) {
      // Progress of a way back that has not been delivered is progress of the update before it.
      if (!running || (device.rolling_back && device.state === 'scheduled')) return device.state;
      if (!device.rolling_back) countMove(state, device.state, 'downloading', noPlace, now);
      await write({ state: 'downloading', progressPercent: report.progressPercent });
      return 'downloading';
    }
    const success = report.status === OtaReport_Status.success;
    const { firmwareVersion } = report;
    if (device.rolling_back) {
      const next = stateOnWayBack({ from: device.state, success, firmwareVersion, updateVersion, rollbackVersion });
      if (!next) return device.state;
      await write({
        state: next,
        deadlineAt: null,
        firmwareVersion,
        error: next === 'failure' ? keptError(report.error) : '',
      });
      await finishRolloutCommands(
        tx,
        state.tenantId,
        [device.correlation_id],
        next === 'failure' ? 'failure' : 'successful',
      );
      countReturn(state, device.state);
      // Not a count of the update, but the operator waits for it.
      state.lastTerminalAt = now;
      settlePhase(state);
      return next;
    }
    const reported = reportedState({ success, firmwareVersion, expectedVersion: updateVersion });
    if (!mayMove(device.state, reported.state)) return device.state;
    countMove(state, device.state, reported.state, placeOf(state, device), now);
    await write({
      state: reported.state,
      deadlineAt: null,
      firmwareVersion: report.firmwareVersion,
      error: reported.error || keptError(report.error),
      progressPercent: reported.state === 'successful' ? 100 : undefined,
    });
    await finishRolloutCommands(tx, state.tenantId, [device.correlation_id], reported.state);
    return reported.state;
  }

  /** A report on a device-level assignment: only the device's version changes. */
  private reportOverride(tenantId: string, deviceId: string, report: OtaReport): Promise<ReportAnswer> {
    const work = async (tx: Transaction): Promise<ReportAnswer> => {
      const assignment = (await listAssignments(tx, tenantId, deviceId)).find((row) => row.slot === 'override');
      if (!assignment) throw invalidArgument('rollout_id is required: the device has no assignment of its own');
      const { firmwareVersion } = report;
      if (firmwareVersion !== '') {
        const versions = new Map([[deviceId.toLowerCase(), firmwareVersion]]);
        await this.membership.devicesChanged(tx, tenantId, await setVersions(tx, tenantId, assignment.type, versions));
      }
      const state =
        report.status === undefined
          ? 'downloading'
          : reportedState({
              success: report.status === OtaReport_Status.success,
              firmwareVersion,
              expectedVersion: assignment.version,
            }).state;
      return { deviceId, rolloutId: '', state: RolloutDevice_State[state] };
    };
    return retryConflicts(() => this.database.tenant(tenantId, work));
  }
}

/** The versions that devices of the rollout report: of several reports of a device the last one's. */
function versionsOf(
  batch: readonly WaitingReport[],
  known: readonly { readonly device_id: string }[],
): Map<string, string> {
  const ids = new Set(known.map((row) => row.device_id));
  return new Map(
    batch.flatMap(({ deviceId, report: { firmwareVersion } }) => {
      const id = deviceId.toLowerCase();
      return firmwareVersion !== '' && ids.has(id) ? [[id, firmwareVersion] as const] : [];
    }),
  );
}

/** What of a rollout a report can change, for telling whether it did. */
const snapshot = (state: RolloutState): string =>
  [
    state.sent,
    state.succeeded,
    state.failed,
    state.timedOut,
    state.stageFailed,
    state.rollbackPending,
    state.pauseConditions.length,
    state.lastTerminalAt?.getTime(),
  ].join();

// Applies the reports of devices. The report that crosses the failure threshold pauses the rollout in the same transaction.
// Reports on one rollout that arrive together share a transaction, so that a fleet does not queue for one row's lock.
import type { OtaReport, ReportOtaResponseSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { OtaReport_Status, RolloutDevice_State } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { setVersions } from '../../../device-registry/devices.ts';
import type { MembershipListener } from '../../../device-registry/membership.ts';
import { Batches } from '../../../platform/batches.ts';
import type { Clock } from '../../../platform/clock.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { invalidArgument, notFound } from '../../../platform/errors.ts';
import { retryConflicts } from '../../../platform/database/retry-conflicts.ts';
import { finishRolloutCommands, keptError } from '../../commands/commands.ts';
import { listAssignments } from '../assignments/assignment-store.ts';
import { findPackageEver } from '../packages/package-store.ts';
import { mayMove, reportedState, stateOnWayBack } from './progress.ts';
import { findRolloutDevice, knownDevices, updateRolloutDevice, type RolloutDeviceRow } from './rollout-device-store.ts';
import {
  countMove,
  countReturn,
  noPlace,
  pauseIfExceeded,
  settlePhase,
  type DeviceState,
  type RolloutState,
} from './rollout-state.ts';
import { getRollout, lockRollout, saveIfChanged, snapshot } from './rollout-store.ts';
import { placeOf } from './scheduling.ts';

type ReportResponse = MessageInitShape<typeof ReportOtaResponseSchema>;

interface WaitingReport {
  readonly tenantId: string;
  readonly rolloutId: string;
  readonly deviceId: string;
  readonly report: OtaReport;
}

/** Maximum characters of a firmware version. */
const maxVersionLength = 253;

/** Maximum reports that share a transaction. */
const reportsPerTransaction = 200;

/** Applies reports and returns each result once its transaction has committed. */
export class Reports {
  private readonly database: Database;
  private readonly membership: MembershipListener;
  private readonly clock: Clock;
  private readonly batches = new Batches<WaitingReport, ReportResponse | Error>(
    reportsPerTransaction,
    (_rollout, batch) => this.apply(batch),
  );

  constructor(database: Database, membership: MembershipListener, clock: Clock) {
    this.database = database;
    this.membership = membership;
    this.clock = clock;
  }

  /**
   * Applies a device's report. Throws NOT_FOUND for a rollout that the device is not in, INVALID_ARGUMENT for an empty or
   * malformed report.
   */
  async report(tenantId: string, deviceId: string, report: OtaReport): Promise<ReportResponse> {
    if (report.status === undefined && report.progressPercent === undefined) {
      throw invalidArgument('report: status or progress_percent is required');
    }
    if (report.progressPercent !== undefined && report.progressPercent > 100) {
      throw invalidArgument('progress_percent must be from 0 to 100');
    }
    if (report.status === OtaReport_Status.success && report.firmwareVersion === '') {
      throw invalidArgument('firmware_version is required with a success');
    }
    if (report.firmwareVersion.length > maxVersionLength) {
      throw invalidArgument(`firmware_version must have at most ${maxVersionLength} characters`);
    }
    if (report.rolloutId === '') return this.reportOverride(tenantId, deviceId, report);
    const waiting = { tenantId, rolloutId: report.rolloutId, deviceId, report };
    const result = await this.batches.add(`${tenantId}/${report.rolloutId}`, waiting);
    if (result instanceof Error) throw result;
    return result;
  }

  /** Applies reports on one rollout in one transaction. A report that is refused leaves the others as they are. */
  private apply(batch: readonly WaitingReport[]): Promise<(ReportResponse | Error)[]> {
    const { tenantId, rolloutId } = batch[0]!;
    const work = async (tx: Transaction): Promise<(ReportResponse | Error)[]> => {
      const [{ profileId, packageId, rollbackPackageId, phase }, known] = await Promise.all([
        getRollout(tx, tenantId, rolloutId),
        knownDevices(tx, tenantId, rolloutId, [...new Set(batch.map(({ deviceId }) => deviceId.toLowerCase()))]),
      ]);
      // A package can be deleted once its rollout has completed, and devices repeat their reports.
      const [update, back] = await Promise.all([
        findPackageEver(tx, tenantId, packageId),
        rollbackPackageId ? findPackageEver(tx, tenantId, rollbackPackageId) : undefined,
      ]);
      // Devices are locked before rollouts (device-registry/membership.ts), in one statement.
      const changes = await setVersions(tx, tenantId, update?.type ?? 'fw', versionsOf(batch, known));
      // A new version can make a device eligible for another rollout of its profile and type. There is none while this one
      // runs, so members of a running rollout need no check.
      const members = new Set(known.flatMap((row) => (row.has_left ? [] : [row.device_id])));
      const elsewhere = changes.filter(
        ({ after }) => phase === 'completed' || after.profileId !== profileId || !members.has(after.deviceId),
      );
      await this.membership.devicesChanged(tx, tenantId, elsewhere);
      const state = await lockRollout(tx, tenantId, rolloutId);
      if (state.phase === 'completed' && phase !== 'completed') throw new CompletedMeanwhile();
      // The rollback package may have changed before the lock was taken.
      const wayBack =
        state.rollbackPackageId && state.rollbackPackageId !== rollbackPackageId
          ? await findPackageEver(tx, tenantId, state.rollbackPackageId)
          : back;
      const answers: (ReportResponse | Error)[] = [];
      const before = snapshot(state);
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
      await saveIfChanged(tx, state, before, this.clock, event);
      return answers;
    };
    return retryConflicts(() => this.database.tenant(tenantId, work));
  }

  /** Applies one report to the device's row and the counters. Returns the device's new state. */
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
      // Before a rollback is delivered, progress is about the update that it replaces.
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
      // It does not count towards the update, but the operator waits for it.
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

  /** Applies a report on a device-level assignment, which changes the device's version only. */
  private reportOverride(tenantId: string, deviceId: string, report: OtaReport): Promise<ReportResponse> {
    const work = async (tx: Transaction): Promise<ReportResponse> => {
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

/**
 * The rollout has completed since it was read. Another rollout may include its members and must be updated with their new versions
 * before this one is locked. The SQLSTATE has retryConflicts run the transaction again.
 */
class CompletedMeanwhile extends Error {
  readonly code = '40001';
}

/** Returns the versions that devices of the rollout report. The last report of a device wins. */
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

// Applies the reports of devices. The report that crosses the failure threshold pauses the rollout in the same transaction.
// Reports on one rollout that arrive together share a transaction, so that a fleet does not queue for one row's lock.
import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type OtaReport,
  OtaReport_Status,
  type ReportOtaResponseSchema,
  RolloutDevice_State,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { findDevice, setVersions } from '../../../device-registry/devices/devices.ts';
import type { FleetFacts, MembershipListener } from '../../../device-registry/devices/fleet-changes.ts';
import type { Clock } from '../../../platform/clock.ts';
import { Batches } from '../../../platform/concurrency/keyed-batches.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import { invalidArgument, notFound, resourceExhausted } from '../../../platform/errors.ts';
import { textField } from '../../../platform/requests/fields.ts';
import { TokenBuckets } from '../../../platform/token-bucket.ts';
import { finishRolloutCommands, keptError, stopRedelivery } from '../../commands/commands.ts';
import { findOverride, putIntoEffect } from '../assignments/assignment-store.ts';
import { findPackageEver } from '../packages/package-store.ts';
import { mayMove, reportedState, stateOnWayBack } from './decisions/report-decision.ts';
import {
  countMove,
  countReturn,
  type DeviceState,
  isFailure,
  isRunning,
  noPlace,
  pauseIfExceeded,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { newResult, type ReportedResult, sameResult } from './results.ts';
import { addResults, lastResult } from './stores/result-store.ts';
import {
  findRolloutDevices,
  knownDevices,
  type ReportedColumns,
  type RolloutDeviceRow,
  writeReported,
} from './stores/rollout-device-store.ts';
import { getRollout, lockRollout, saveIfChanged, snapshot } from './stores/rollout-store.ts';
import { placeOf } from './work/scheduling.ts';

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

/**
 * Reports of a device that add a result, which is kept for ever, or change its version, at once and in a day. An update takes one or
 * two. It need not be exact across processes.
 */
const changingReports = { burst: 100, perSecond: 100 / 86_400 };

/** Applies reports and returns each result once its transaction has committed. */
export class Reports {
  private readonly database: Database;
  private readonly membership: MembershipListener;
  private readonly clock: Clock;
  private readonly allowance: TokenBuckets;
  private readonly batches = new Batches<WaitingReport, ReportResponse | Error>(
    reportsPerTransaction,
    (_rollout, batch) => this.apply(batch),
  );

  constructor(database: Database, membership: MembershipListener, clock: Clock) {
    this.database = database;
    this.membership = membership;
    this.clock = clock;
    this.allowance = new TokenBuckets(clock, changingReports);
  }

  /**
   * Applies a device's report. Throws NOT_FOUND for a rollout that the device is not in, INVALID_ARGUMENT for an empty or
   * malformed report, RESOURCE_EXHAUSTED for one of a device that changes its mind too often.
   */
  async report(tenantId: string, deviceId: string, given: OtaReport): Promise<ReportResponse> {
    // Reports share a transaction, so one with what PostgreSQL cannot hold would fail those of other devices.
    // Encoders that write every field write the unspecified status for none, which must not count as a failure.
    const report = { ...given, status: given.status || undefined, error: keptError(given.error) };
    const statuses: readonly unknown[] = [OtaReport_Status.success, OtaReport_Status.failure, undefined];
    if (!statuses.includes(report.status)) throw invalidArgument('status must be success or failure');
    if (report.status === undefined && report.progressPercent === undefined) {
      throw invalidArgument('report: status or progress_percent is required');
    }
    if (report.progressPercent !== undefined && report.progressPercent > 100) {
      throw invalidArgument('progress_percent must be from 0 to 100');
    }
    if (report.status === OtaReport_Status.success && report.firmwareVersion === '') {
      throw invalidArgument('firmware_version is required with a success');
    }
    textField('firmware_version', report.firmwareVersion, { maximum: maxVersionLength });
    if (report.status !== undefined || report.firmwareVersion !== '') {
      const wait = this.allowance.wait(ownerOf(tenantId, deviceId));
      if (wait > 0) throw resourceExhausted('the device has reported too many different results within a day', wait);
    }
    if (report.rolloutId === '') return this.reportOverride(tenantId, deviceId, report);
    // In one spelling: it is hashed with the result.
    const rolloutId = report.rolloutId.toLowerCase();
    const result = await this.batches.add(`${tenantId}/${rolloutId}`, { tenantId, rolloutId, deviceId, report });
    if (result instanceof Error) throw result;
    return result;
  }

  /** Counts the devices with a result or version that is new. */
  private charge(tenantId: string, deviceIds: readonly string[]): void {
    for (const deviceId of new Set(deviceIds)) this.allowance.charge(ownerOf(tenantId, deviceId));
  }

  /** Applies reports on one rollout in one transaction. A report that is refused leaves the others as they are. */
  private async apply(batch: readonly WaitingReport[]): Promise<(ReportResponse | Error)[]> {
    const { tenantId, rolloutId } = batch[0]!;
    let changing: readonly string[] = [];
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
      // Devices are locked before rollouts (device-registry/devices/fleet-changes.ts), in one statement.
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
      const now = new Date(this.clock.now());
      const before = snapshot(state);
      const deviceIds = known.map((row) => row.device_id);
      const rows = await findRolloutDevices(tx, tenantId, rolloutId, deviceIds);
      const devices = new Map(rows.map((row) => [row.device_id, row]));
      const changed = new Set<string>();
      const ended = new Map<string, 'successful' | 'failure'>();
      const results: ReportedResult[] = [];
      const newVersions = versionsAfter(changes, update?.type ?? 'fw');
      const responses = batch.map(({ deviceId, report }) => {
        const device = devices.get(deviceId.toLowerCase());
        if (!device) return notFound('rollout_id');
        const change = applyReport(state, device, report, update?.version ?? '', wayBack?.version ?? '', now);
        const isOnNewVersion = newVersions.get(device.device_id) === report.firmwareVersion;
        const result = resultOf(device, report, change, update?.version ?? '', isOnNewVersion);
        // Of several reports on the new version that arrive together, the first is its result.
        if (result && isOnNewVersion) newVersions.delete(device.device_id);
        if (result) results.push({ ...result, rolloutId, package_: device.rolling_back ? wayBack : update });
        if (!change) return { deviceId, rolloutId, state: RolloutDevice_State[device.state] };
        devices.set(device.device_id, { ...device, ...change.columns });
        changed.add(device.device_id);
        if (change.command) ended.set(device.correlation_id, change.command);
        return { deviceId, rolloutId, state: RolloutDevice_State[change.columns.state] };
      });
      for (const row of rows) {
        const device = devices.get(row.device_id)!;
        if (device.state !== row.state) state.changedDevices.push(device);
      }
      changing = [...changes.map(({ after }) => after.deviceId), ...results.map((result) => result.deviceId)];
      const event = pauseIfExceeded(state, now);
      const endedAs = (status: string) => [...ended].flatMap(([id, each]) => (each === status ? [id] : []));
      await Promise.all([
        writeReported(
          tx,
          tenantId,
          rolloutId,
          [...changed].map((deviceId) => devices.get(deviceId)!),
        ),
        // It has the update, whether its command was delivered or not.
        putIntoEffect(
          tx,
          tenantId,
          rows.flatMap((row) => (row.state === 'scheduled' && changed.has(row.device_id) ? [row.device_id] : [])),
          rolloutId,
        ),
        finishRolloutCommands(tx, tenantId, endedAs('successful'), 'successful'),
        finishRolloutCommands(tx, tenantId, endedAs('failure'), 'failure'),
        addResults(
          tx,
          tenantId,
          results.map((result) => newResult(tenantId, result, now)),
        ),
        saveIfChanged(tx, state, before, this.clock, event),
      ]);
      return responses;
    };
    const responses = await retriedTransactions(this.database)(tenantId, work);
    this.charge(tenantId, changing);
    return responses;
  }

  /** Applies a report on a device-level assignment, which changes the device's version and ends the command. */
  private async reportOverride(tenantId: string, deviceId: string, report: OtaReport): Promise<ReportResponse> {
    let isChanging = false;
    const work = async (tx: Transaction): Promise<ReportResponse> => {
      const assignment = await findOverride(tx, tenantId, deviceId);
      if (!assignment) throw invalidArgument('rollout_id is required: the device has no assignment of its own');
      const { firmwareVersion } = report;
      // Repeated reports that arrive together follow one another.
      await findDevice(tx, tenantId, deviceId, 'FOR NO KEY UPDATE');
      if (firmwareVersion !== '') {
        const versions = new Map([[deviceId.toLowerCase(), firmwareVersion]]);
        const changes = await setVersions(tx, tenantId, assignment.type, versions);
        await this.membership.devicesChanged(tx, tenantId, changes);
        isChanging = changes.length > 0;
      }
      const command = assignment.correlation_id === null ? [] : [assignment.correlation_id];
      if (report.status === undefined) {
        await stopRedelivery(tx, tenantId, command);
        return { deviceId, rolloutId: '', state: RolloutDevice_State.downloading };
      }
      const success = report.status === OtaReport_Status.success;
      const { state, error } = reportedState({ success, firmwareVersion, expectedVersion: assignment.version });
      await finishRolloutCommands(tx, tenantId, command, state);
      const result = newResult(
        tenantId,
        {
          deviceId: deviceId.toLowerCase(),
          rolloutId: '',
          result: state,
          package_: await findPackageEver(tx, tenantId, assignment.package_id),
          reportedVersion: firmwareVersion,
          error: error || report.error,
        },
        new Date(this.clock.now()),
      );
      const last = await lastResult(tx, tenantId, deviceId);
      if (last === undefined || !sameResult(last, result.payload)) {
        await addResults(tx, tenantId, [result]);
        isChanging = true;
      }
      return { deviceId, rolloutId: '', state: RolloutDevice_State[state] };
    };
    const response = await retriedTransactions(this.database)(tenantId, work);
    if (isChanging) this.charge(tenantId, [deviceId]);
    return response;
  }
}

const ownerOf = (tenantId: string, deviceId: string): string => `${tenantId}/${deviceId.toLowerCase()}`;

/** What a report changes. */
interface ReportedChange {
  readonly columns: Partial<ReportedColumns> & { readonly state: DeviceState };
  /** How the device's command ends; undefined: it stays open. */
  readonly command?: 'successful' | 'failure';
}

/** Applies one report to the counters. Returns what it changes on the device's row, or undefined for nothing. */
function applyReport(
  state: RolloutState,
  device: RolloutDeviceRow,
  report: OtaReport,
  updateVersion: string,
  rollbackVersion: string,
  now: Date,
): ReportedChange | undefined {
  if (report.status === undefined) {
    // Before a rollback is delivered, progress is about the update that it replaces.
    if (!isRunning(device.state) || (device.rolling_back && device.state === 'scheduled')) return undefined;
    if (!device.rolling_back) countMove(state, device.state, 'downloading', noPlace, now);
    return { columns: { state: 'downloading', progress_percent: report.progressPercent! } };
  }
  const success = report.status === OtaReport_Status.success;
  const { firmwareVersion } = report;
  if (device.rolling_back) {
    const next = stateOnWayBack({ from: device.state, success, firmwareVersion, updateVersion, rollbackVersion });
    if (!next) return undefined;
    if (next === 'rolled_back') countReturn(state);
    // It does not count towards the update, but the operator waits for it.
    state.lastTerminalAt = now;
    const error = next === 'failure' ? report.error : '';
    return {
      columns: { state: next, deadline_at: null, firmware_version: firmwareVersion, error },
      command: next === 'failure' ? 'failure' : 'successful',
    };
  }
  const reported = reportedState({ success, firmwareVersion, expectedVersion: updateVersion });
  const wasCancelled = state.outcome === 'cancelled' && !device.has_left;
  if (!mayMove(device.state, reported.state, wasCancelled)) return undefined;
  countMove(state, device.state, reported.state, placeOf(state, device), now);
  return {
    columns: {
      state: reported.state,
      deadline_at: null,
      firmware_version: firmwareVersion,
      error: reported.error || report.error,
      ...(reported.state === 'successful' && { progress_percent: 100 }),
      // Not acknowledged by an earlier resume.
      ...(isFailure(reported.state) && !isFailure(device.state) && { failed_in: state.resumes }),
    },
    command: reported.state,
  };
}

/**
 * Returns the result that a report brings, or undefined: of a terminal report that changes the device's state in the rollout or,
 * although it comes too late for that, the version that the device runs.
 */
function resultOf(
  device: RolloutDeviceRow,
  report: OtaReport,
  change: ReportedChange | undefined,
  updateVersion: string,
  isOnNewVersion: boolean,
): Omit<ReportedResult, 'rolloutId' | 'package_'> | undefined {
  if (report.status === undefined || (!change && !isOnNewVersion)) return undefined;
  const success = report.status === OtaReport_Status.success;
  const { firmwareVersion: reportedVersion } = report;
  const reported = reportedState({ success, firmwareVersion: reportedVersion, expectedVersion: updateVersion });
  const result = change ? (change.columns.state as ReportedResult['result']) : reported.state;
  const error = change ? (change.columns.error ?? '') : reported.error || report.error;
  return { deviceId: device.device_id, result, reportedVersion, error };
}

/**
 * The rollout has completed since it was read. Another rollout may include its members and must be updated with their new versions
 * before this one is locked. The SQLSTATE has retryConflicts run the transaction again.
 */
class CompletedMeanwhile extends Error {
  readonly code = '40001';
}

/** Returns the new versions of devices whose version of this type changed. */
const versionsAfter = (changes: readonly { readonly after: FleetFacts }[], type: 'fw' | 'sw'): Map<string, string> =>
  new Map(changes.map(({ after }) => [after.deviceId, type === 'fw' ? after.firmwareVersion : after.softwareVersion]));

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

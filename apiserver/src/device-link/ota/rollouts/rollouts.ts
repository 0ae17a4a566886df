// Rollouts of the API. Creation writes a custom resource; actions change the row under its lock, and the operator mirrors them into
// the resource's status, never its spec.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import {
  type CreateRolloutRequest,
  type ListRolloutDevicesRequest,
  type ListRolloutDevicesResponseSchema,
  type ListRolloutsRequest,
  type ListRolloutsResponseSchema,
  PlanRolloutResponse_SecondsFrom,
  type PlanRolloutResponseSchema,
  Rollout_StatusSchema,
  RolloutDevice_State,
  RolloutDevice_StateSchema,
  type RolloutSchema,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { RefusalError, refusalError } from '../../../control/applier.ts';
import { specOf } from '../../../control/manifest-mapping.ts';
import type { Clock } from '../../../platform/clock.ts';
import { FairSlots } from '../../../platform/concurrency/fair-slots.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import { failedPrecondition, invalidArgument, KelletError, notFound, unavailable } from '../../../platform/errors.ts';
import { isId, randomToken, rolloutId } from '../../../platform/ids.ts';
import { enumFilter } from '../../../platform/requests/enums.ts';
import type { Paging } from '../../../platform/requests/paging.ts';
import type { CallContext } from '../../../platform/rpc.ts';
import { listSized } from '../../../platform/statements/sized-rows.ts';
import { checkWindow } from '../../../policies/policies.ts';
import type { TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import { nameTaken, resourceName } from '../../../resources/resource-names.ts';
import type { NewResource, ResourceWriter } from '../../../resources/resource-writer.ts';
import { finishRolloutCommands } from '../../commands/commands.ts';
import { findPackage, getPackage, packageEverExisted } from '../packages/package-store.ts';
import { isUntrusted } from '../packages/signature.ts';
import { planStages } from './decisions/plan.ts';
import { deliveryWindow } from './decisions/rollout-policy.ts';
import {
  approve,
  cancel,
  countMove,
  type DeviceState,
  pause,
  raise,
  refuseUnlessUnderWay,
  requestRetry,
  resume,
  type RolloutEvent,
  type RolloutState,
} from './decisions/rollout-state.ts';
import { rolloutProblem } from './decisions/rollout-validation.ts';
import { updateHistory } from './decisions/update-history.ts';
import { toRollouts } from './observed.ts';
import { eligibleFrom, listExcluded } from './planning/fleet-summary.ts';
import { requireAdmissible, wantedRollout } from './planning/rollout-admissibility.ts';
import {
  findRolloutDevices,
  listRolloutDevices,
  markSkipped,
  type RolloutDeviceRow,
} from './stores/rollout-device-store.ts';
import {
  findRollout,
  getRollout,
  listRollouts,
  lockRollout,
  profileResourceName,
  saveIfChanged,
  snapshot,
} from './stores/rollout-store.ts';
import { listUpdateTimes } from './stores/update-time-store.ts';
import { retriedStates, retryDevices, retryNextDevices } from './work/retry.ts';
import { turnBack } from './work/rollback.ts';
import { placeOf } from './work/scheduling.ts';
import { takeBack, withdraw } from './work/withdrawal.ts';

type Rollout = MessageInitShape<typeof RolloutSchema>;

/** Maximum devices that a plan names per step, and as excluded. */
const plannedDevices = 100;

/** Maximum devices that a call names: the rollout, and what is done with it, waits for them. */
const maximumNamed = 1000;

/** How long a plan waits for its turn. */
const planMilliseconds = 5000;

/** Devices of a page that waits for no turn: the error of one takes up to 16 KiB. */
const smallPageOfDevices = 50;

const toRolloutDevice = (row: RolloutDeviceRow) => ({
  deviceId: row.device_id,
  state: RolloutDevice_State[row.state],
  attempts: row.attempts,
  firmwareVersion: row.firmware_version,
  error: row.error,
  progressPercent: row.progress_percent ?? undefined,
  updatedAt: timestampFromDate(row.updated_at),
});

const unknownDevice = (id: string): KelletError => notFound(`device_ids: ${JSON.stringify(id)}`);

/** Rollouts of the API. */
export class Rollouts {
  private readonly parts: {
    database: Database;
    profiles: TransactionalProfileReader;
    writer: ResourceWriter;
    paging: Paging;
    clock: Clock;
  };
  /** Turns of plans: each reads the fleet of a profile, and asks the API server, though it changes nothing. */
  private readonly plans = new FairSlots({
    ...{ total: 4, perOwner: 2, waitingPerOwner: 100 },
    refusal: () => unavailable('too many rollouts are being planned: try again'),
  });

  constructor(parts: Rollouts['parts']) {
    this.parts = parts;
  }

  /** Creates the custom resource and schedules the canary; see OtaService.CreateRollout. */
  async create(request: CreateRolloutRequest, context: CallContext): Promise<Rollout> {
    const resource = await this.wanted(request, context.tenantId);
    const created = this.parts.writer.create(context, resource, async (tx, id) =>
      this.present(tx, await getRollout(tx, context.tenantId, id)),
    );
    return created.catch((error: unknown) => this.rethrow(error, request, context.tenantId));
  }

  /** Rethrows the error of a creation. A referent that was deleted meanwhile is named as in the request. */
  private async rethrow(error: unknown, request: CreateRolloutRequest, tenantId: string): Promise<never> {
    const refusal = error instanceof RefusalError ? refusalError('OtaRollout', error) : error;
    if (refusal instanceof KelletError && refusal.code === 'NOT_FOUND') await this.wanted(request, tenantId);
    throw refusal;
  }

  /** Returns the resource that a request describes. Throws INVALID_ARGUMENT, NOT_FOUND or ALREADY_EXISTS naming the field. */
  private async wanted(request: CreateRolloutRequest, tenantId: string): Promise<NewResource<'OtaRollout'>> {
    const problem = rolloutProblem(request);
    if (problem) throw invalidArgument(problem);
    if (request.window) checkWindow('window', request.window);
    const profile = isId(request.targetProfileId)
      ? await this.parts.profiles.get(tenantId, request.targetProfileId)
      : undefined;
    if (!profile) throw notFound('target_profile_id');
    const { package_, profileResource, rollback } = await this.parts.database.read(tenantId, async (tx) => {
      const package_ = await getPackage(tx, tenantId, request.packageId);
      const rollback = request.rollbackPackageId
        ? await getPackage(tx, tenantId, request.rollbackPackageId, 'rollback_package_id')
        : undefined;
      const profileResource = await profileResourceName(tx, tenantId, profile.profileId);
      // Its record would be adopted, and nothing rolled out.
      if (request.name !== '') {
        const id = rolloutId(tenantId, resourceName(request.name), package_.package_id, profile.profileId);
        const held = await findRollout(tx, tenantId, id);
        if (held) throw nameTaken('rollout', request.name, held.displayName);
      }
      return { package_, profileResource, rollback };
    });
    const spec = {
      ...specOf('OtaRollout', request),
      packageRef: { name: package_.name },
      targetProfileRef: { name: profileResource },
      ...(rollback && { rollbackPackageRef: { name: rollback.name } }),
    };
    const displayName =
      request.name ||
      `${package_.name}-${randomToken(4)
        .toLowerCase()
        .replaceAll(/[^a-z0-9]/g, '0')}`;
    return { kind: 'OtaRollout', displayName, spec };
  }

  /**
   * Returns what the same creation would do now, without changing anything. Throws what the creation would throw, because both use
   * the same checks: `wanted`, the API server's dry run, and `requireAdmissible`. Throws UNAVAILABLE if its turn does not come in
   * time.
   */
  plan(
    request: CreateRolloutRequest,
    context: CallContext,
  ): Promise<MessageInitShape<typeof PlanRolloutResponseSchema>> {
    const work = () => this.planned(request, context);
    return this.plans.run(context.tenantId, work, { milliseconds: planMilliseconds });
  }

  private async planned(
    request: CreateRolloutRequest,
    context: CallContext,
  ): Promise<MessageInitShape<typeof PlanRolloutResponseSchema>> {
    const { tenantId } = context;
    const resource = await this.wanted(request, tenantId);
    const foreseen = await this.parts.writer.foresee(context, resource);
    const profile = await this.parts.profiles.get(tenantId, request.targetProfileId);
    const transaction = async (tx: Transaction) => {
      const admissible = await requireAdmissible(tx, wantedRollout(foreseen.meta!, resource.spec), profile);
      const { fleet, package_ } = admissible;
      const window = deliveryWindow(request, admissible.profile.otaPolicy);
      const history = updateHistory(await listUpdateTimes(tx, tenantId), admissible.profile.profileId);
      const now = new Date(this.parts.clock.now());
      const stages = planStages(fleet.eligible, request, { now, window, deviceSeconds: history.deviceSeconds });
      const places = stages.flatMap(({ first, added }) => (added > 0 ? [first] : []));
      const named = await eligibleFrom(tx, tenantId, admissible.profile, package_, fleet, {
        places,
        limit: plannedDevices,
      });
      const steps = stages.map(({ percent, scheduled, seconds, first, added }) => {
        const deviceIds = added > 0 ? named[places.indexOf(first)]!.slice(0, added) : [];
        return { percent, scheduled, seconds, deviceIds };
      });
      const { eligible, excludedCounts } = fleet;
      const isComplete = Object.keys(excludedCounts).length === 0;
      const excluded = isComplete
        ? []
        : await listExcluded(tx, tenantId, admissible.profile, package_, fleet, plannedDevices);
      const { deviceSeconds, rolloutIds } = history;
      const secondsFrom = PlanRolloutResponse_SecondsFrom[rolloutIds.length > 0 ? 'history' : 'settings'];
      return {
        ...{ eligible, steps, excluded, excludedCounts },
        ...{ secondsFrom, deviceSeconds, historyRolloutIds: [...rolloutIds] },
      };
    };
    return this.parts.database
      .tenant(tenantId, transaction)
      .catch((error: unknown) => this.rethrow(error, request, tenantId));
  }

  /** Returns a rollout. Throws NOT_FOUND. */
  get(tenantId: string, rolloutId: string): Promise<Rollout> {
    return this.parts.database.read(tenantId, async (tx) =>
      this.present(tx, await getRollout(tx, tenantId, rolloutId)),
    );
  }

  /** Returns a page of rollouts in order of creation. */
  async list(
    request: ListRolloutsRequest,
    tenantId: string,
  ): Promise<MessageInitShape<typeof ListRolloutsResponseSchema>> {
    const filter = {
      phase: enumFilter('status', Rollout_StatusSchema, request.status),
      packageId: request.packageId || undefined,
      profileId: request.targetProfileId || undefined,
    };
    for (const [field, id] of Object.entries({ package_id: filter.packageId, target_profile_id: filter.profileId })) {
      if (id !== undefined && !isId(id)) throw notFound(field);
    }
    const scope = [tenantId, 'rollouts', filter];
    const page = this.parts.paging.open<string>(request, scope);
    const read = async (tx: Transaction) => {
      const states = await listRollouts(tx, tenantId, filter, page.after, page.size);
      // A package of the tenant without rollouts gives an empty list, any other NOT_FOUND.
      if (states.length === 0 && filter.packageId && !(await packageEverExisted(tx, tenantId, filter.packageId))) {
        throw notFound('package_id');
      }
      const closed = this.parts.paging.close(states, page, scope, (state) => state.rolloutId);
      return { ...closed, rollouts: await toRollouts(tx, tenantId, closed.rows, new Date(this.parts.clock.now())) };
    };
    const { rows, nextPageToken, rollouts } = await this.parts.paging.inTurn(tenantId, page, () =>
      this.parts.database.read(tenantId, read),
    );
    if (rows.length === 0 && filter.profileId && !(await this.parts.profiles.get(tenantId, filter.profileId))) {
      throw notFound('target_profile_id');
    }
    return { rollouts, nextPageToken };
  }

  /** Returns a page of a rollout's devices in order of their ids. */
  async listDevices(
    request: ListRolloutDevicesRequest,
    tenantId: string,
  ): Promise<MessageInitShape<typeof ListRolloutDevicesResponseSchema>> {
    const { rolloutId } = request;
    const state = enumFilter<DeviceState>('state', RolloutDevice_StateSchema, request.state);
    const states = state && [state];
    const { items, nextPageToken } = await listSized(this.parts, request, {
      scope: [tenantId, 'rollout devices', rolloutId, states],
      smallPage: smallPageOfDevices,
      cursorOf: (row: RolloutDeviceRow) => row.device_id,
      check: (tx) => getRollout(tx, tenantId, rolloutId),
      read: (tx, after, room) => listRolloutDevices(tx, tenantId, rolloutId, states, after, room),
      toItem: toRolloutDevice,
    });
    return { devices: items, nextPageToken };
  }

  /** Pauses a rollout. */
  pause = (context: CallContext, rolloutId: string): Promise<Rollout> =>
    this.change(context, rolloutId, async (_tx, state) => {
      pause(state, context.caller.name, new Date(this.parts.clock.now()));
    });

  /** Resumes a rollout, and may raise it. */
  resume = (context: CallContext, rolloutId: string, percent: number | undefined): Promise<Rollout> =>
    this.change(context, rolloutId, async (tx, state) => {
      const profile = await this.parts.profiles.getWithin(tx, state.tenantId, state.profileId);
      const package_ = await findPackage(tx, state.tenantId, state.packageId);
      if (package_ && isUntrusted(profile?.otaPolicy?.requireSignature, package_)) {
        throw failedPrecondition('the package has no signature by a trusted key');
      }
      return resume(state, percent);
    });

  /** Raises an active rollout. */
  raise = (context: CallContext, rolloutId: string, percent: number): Promise<Rollout> =>
    this.change(context, rolloutId, async (_tx, state) => raise(state, percent));

  /** Approves the next step. */
  approve = (context: CallContext, rolloutId: string): Promise<Rollout> =>
    this.change(context, rolloutId, async (_tx, state) => approve(state));

  /** Rolls the rollout back. */
  rollback = (context: CallContext, rolloutId: string): Promise<Rollout> =>
    this.change(context, rolloutId, async (tx, state) => {
      const profile = await this.parts.profiles.getWithin(tx, state.tenantId, state.profileId);
      if (state.rollbackPackageId && !(await findPackage(tx, state.tenantId, state.rollbackPackageId))) {
        throw failedPrecondition('the rollback package has been deleted');
      }
      return turnBack(tx, state, context.caller.name, profile, new Date(this.parts.clock.now()));
    });

  /** Ends the rollout: devices that have not reported are skipped, the first 500 of them at once. */
  cancel = (context: CallContext, rolloutId: string): Promise<Rollout> =>
    this.change(context, rolloutId, async (tx, state) => {
      const event = cancel(state);
      await withdraw(tx, state, new Date(this.parts.clock.now()));
      return event;
    });

  /**
   * Sends failed and timed-out devices a new command; all of them if none is named. Beyond the first 500 they are retried after the
   * response (rollout-work.ts).
   */
  retry = (context: CallContext, rolloutId: string, deviceIds: readonly string[]): Promise<Rollout> =>
    this.change(context, rolloutId, async (tx, state) => {
      refuseUnlessUnderWay(state);
      const named = deviceIds.length > 0 ? await this.namedDevices(tx, state, deviceIds, retriedStates) : undefined;
      if (named ? named.length === 0 : state.failed + state.timedOut === 0) return;
      const package_ = await findPackage(tx, state.tenantId, state.packageId);
      if (!package_) throw failedPrecondition('the package has been deleted');
      const now = new Date(this.parts.clock.now());
      if (named) return retryDevices(tx, state, package_, named, now);
      requestRetry(state);
      await retryNextDevices(tx, state, package_, now);
    });

  /** Skips devices, which then need not succeed. */
  skip = (context: CallContext, rolloutId: string, deviceIds: readonly string[]): Promise<Rollout> =>
    this.change(context, rolloutId, async (tx, state) => {
      refuseUnlessUnderWay(state);
      if (deviceIds.length === 0) throw invalidArgument('device_ids must name the devices to skip');
      const devices = await this.namedDevices(tx, state, deviceIds, [
        'scheduled',
        'sent',
        'downloading',
        'failure',
        'timed_out',
      ]);
      for (const device of devices) {
        countMove(state, device.state, 'skipped', placeOf(state, device), new Date(this.parts.clock.now()));
      }
      const skipped = devices.map((device) => device.device_id);
      state.changedDevices.push(...(await markSkipped(tx, state.tenantId, state.rolloutId, skipped)));
      await finishRolloutCommands(
        tx,
        state.tenantId,
        devices.map((device) => device.correlation_id),
        'cancelled',
      );
      await takeBack(
        tx,
        state,
        devices.filter((device) => device.state === 'scheduled'),
      );
    });

  /** Returns the named devices that are in one of the states. Throws NOT_FOUND if one is not in the rollout. */
  private async namedDevices(
    tx: Transaction,
    state: RolloutState,
    deviceIds: readonly string[],
    states: readonly DeviceState[],
  ) {
    if (deviceIds.length > maximumNamed) throw invalidArgument(`device_ids must have at most ${maximumNamed} entries`);
    const unknown = deviceIds.find((id) => !isId(id));
    if (unknown !== undefined) throw unknownDevice(unknown);
    const named = [...new Set(deviceIds)];
    const found = await findRolloutDevices(tx, state.tenantId, state.rolloutId, named);
    const ids = new Set(found.map((device) => device.device_id));
    const missing = named.find((id) => !ids.has(id.toLowerCase()));
    if (missing !== undefined) throw unknownDevice(missing);
    return found.filter((device) => states.includes(device.state));
  }

  private async present(tx: Transaction, state: RolloutState): Promise<Rollout> {
    return (await toRollouts(tx, state.tenantId, [state], new Date(this.parts.clock.now())))[0]!;
  }

  /** Changes a rollout under its lock, saves it if it changed, and returns it. */
  private change(
    context: CallContext,
    rolloutId: string,
    work: (tx: Transaction, state: RolloutState) => Promise<RolloutEvent | undefined | void>,
  ): Promise<Rollout> {
    const { tenantId } = context;
    const transaction = async (tx: Transaction): Promise<Rollout> => {
      const state = await lockRollout(tx, tenantId, rolloutId);
      const before = snapshot(state);
      const event = await work(tx, state);
      await saveIfChanged(tx, state, before, this.parts.clock, event ?? undefined);
      return this.present(tx, state);
    };
    return retriedTransactions(this.parts.database)(tenantId, transaction).catch((error: unknown) => {
      throw error instanceof RefusalError ? refusalError('OtaRollout', error) : error;
    });
  }
}

// Delivers the commands of rollouts. Devices of one rollout that poll at the same time share a transaction, so that a fleet does
// not queue for one row's lock with a connection each.
import type { Clock } from '../../../platform/clock.ts';
import { Batches } from '../../../platform/concurrency/keyed-batches.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { retriedTransactions } from '../../../platform/database/retry-conflicts.ts';
import type { ProfileReader } from '../../../policies/profile-reader.ts';
import {
  cancelEndedUpdates,
  type CommandRow,
  endOpenCommands,
  handOut,
  type OpenCommand,
  postponeCommands,
  stopRedelivery,
} from '../../commands/commands.ts';
import { putIntoEffect } from '../assignments/assignment-store.ts';
import { deliveryWindow, deviceTimeout } from '../rollouts/decisions/rollout-policy.ts';
import { countMove, noPlace, type RolloutState } from '../rollouts/decisions/rollout-state.ts';
import { findRolloutDevices, markHandedOut, type RolloutDeviceRow } from '../rollouts/stores/rollout-device-store.ts';
import { publishChanges } from '../rollouts/stores/rollout-events.ts';
import { lockRollout, saveRollout } from '../rollouts/stores/rollout-store.ts';
import { judgeCommand, mayDeliver } from './delivery-decision.ts';
import { paceHandOuts } from './delivery-rate.ts';

/** Maximum commands delivered by one transaction. */
const commandsPerTransaction = 200;

/** A command that a device's poll found, and its rollout. */
export interface UpdateCommand {
  readonly command: OpenCommand;
  readonly rolloutId: string;
  readonly profileId: string;
}

/** Delivers the commands of rollouts under the rollout's lock: once a pause has committed, no command is delivered. */
export class UpdateDelivery {
  private readonly database: Database;
  private readonly profiles: ProfileReader;
  private readonly clock: Clock;
  private readonly batches = new Batches<UpdateCommand, CommandRow | undefined>(
    commandsPerTransaction,
    (_rollout, items) => this.deliver(items),
  );

  constructor(database: Database, profiles: ProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  /** Returns the command as delivered, or undefined if it must not be delivered now or another poll has taken it. */
  take(update: UpdateCommand): Promise<CommandRow | undefined> {
    return this.batches.add(`${update.command.tenant_id}/${update.rolloutId}`, update);
  }

  private async deliver(items: readonly UpdateCommand[]): Promise<(CommandRow | undefined)[]> {
    const { command, rolloutId, profileId } = items[0]!;
    const tenantId = command.tenant_id;
    // Read before the transaction: one that waited for a second connection would keep its own.
    const policy = (await this.profiles.get(tenantId, profileId))?.otaPolicy;
    // Several polls of a device may find the same command: the first gets it.
    const wanted = new Map<string, OpenCommand>();
    for (const item of items) {
      if (!wanted.has(item.command.correlation_id)) wanted.set(item.command.correlation_id, item.command);
    }
    const transaction = async (tx: Transaction): Promise<CommandRow[]> => {
      const state = await lockRollout(tx, tenantId, rolloutId);
      const { phase, outcome, spec } = state;
      const now = new Date(this.clock.now());
      const commands = [...wanted.values()];
      if (!mayDeliver({ phase, outcome, window: deliveryWindow(spec, policy) }, now)) {
        if (phase === 'completed') await stopRedelivery(tx, tenantId, idsOf(commands));
        return [];
      }
      return this.handOut(tx, state, commands, deviceTimeout(spec, policy), now);
    };
    const handedOut = await retriedTransactions(this.database)(tenantId, transaction);
    const taken = new Map(handedOut.map((row) => [row.correlation_id, row]));
    return items.map((item) => {
      const row = taken.get(item.command.correlation_id);
      taken.delete(item.command.correlation_id);
      return row;
    });
  }

  /** Delivers the commands that are still needed, and starts the deadline of devices that get an attempt's command first. */
  private async handOut(
    tx: Transaction,
    state: RolloutState,
    commands: readonly OpenCommand[],
    timeoutSeconds: number,
    now: Date,
  ): Promise<CommandRow[]> {
    const { tenantId, rolloutId } = state;
    const deviceIds = commands.map((command) => command.device_id);
    const rows = await findRolloutDevices(tx, tenantId, rolloutId, deviceIds);
    const devices = new Map(rows.map((row) => [row.device_id, row]));
    const judged = { deliver: [] as OpenCommand[], hold: [] as OpenCommand[], withdraw: [] as OpenCommand[] };
    const isRollingBack = state.rollbackRequestedAt !== undefined;
    for (const command of commands) {
      judged[judgeCommand(command, devices.get(command.device_id), isRollingBack)].push(command);
    }
    if (judged.hold.length > 0) await stopRedelivery(tx, tenantId, idsOf(judged.hold));
    if (judged.withdraw.length > 0) await endOpenCommands(tx, tenantId, idsOf(judged.withdraw), 'cancelled');
    // A redelivery is not another attempt at the update: its deadline and counters stay.
    const first = new Set(judged.deliver.filter(({ status }) => status === 'scheduled'));
    const late = await this.postpone(
      tx,
      state,
      [...first].filter((command) => !devices.get(command.device_id)!.rolling_back),
      now,
    );
    const ready = judged.deliver.filter((command) => !late.has(command));
    if (ready.length === 0) return [];
    const handedOut = await handOut(tx, tenantId, ready, timeoutSeconds);
    const isFirst = new Set([...first].map((command) => command.correlation_id));
    const begun = handedOut.filter((row) => isFirst.has(row.correlation_id)).map((row) => devices.get(row.device_id)!);
    if (begun.length > 0) {
      const type = handedOut[0]!.params['type'] as string;
      await this.begin(tx, state, begun, type, { timeoutSeconds, now });
    }
    return handedOut;
  }

  /**
   * Postpones the commands that exceed the rollout's max_per_minute, and returns them. Commands are spaced when they are created,
   * but a pause, a closed window or offline devices make many of them due at once. Rollback commands are not postponed.
   */
  private async postpone(
    tx: Transaction,
    state: RolloutState,
    commands: readonly OpenCommand[],
    now: Date,
  ): Promise<Set<OpenCommand>> {
    const { allowed, nextAt, intervalMilliseconds } = paceHandOuts(
      state.spec.maxPerMinute,
      state.nextHandOutAt,
      commands.length,
      now,
    );
    if (allowed > 0) state.nextHandOutAt = nextAt;
    const late = commands.slice(allowed);
    const times = late.map((_, index) => new Date(nextAt!.getTime() + index * intervalMilliseconds));
    await postponeCommands(tx, state.tenantId, idsOf(late), times);
    return new Set(late);
  }

  /** Counts the devices whose attempt at an update of this type begins with this delivery. */
  private async begin(
    tx: Transaction,
    state: RolloutState,
    devices: readonly RolloutDeviceRow[],
    type: string,
    { timeoutSeconds, now }: { timeoutSeconds: number; now: Date },
  ): Promise<void> {
    const deadlineAt = new Date(now.getTime() + timeoutSeconds * 1000);
    const deviceIds = devices.map((device) => device.device_id);
    const { tenantId, rolloutId } = state;
    await Promise.all([
      markHandedOut(tx, tenantId, rolloutId, deadlineAt, deviceIds),
      cancelEndedUpdates(tx, tenantId, deviceIds, type),
      putIntoEffect(tx, tenantId, deviceIds, rolloutId),
    ]);
    for (const device of devices) {
      const sent = device.state === 'scheduled' ? 'sent' : device.state;
      state.changedDevices.push({ ...device, state: sent, attempts: device.attempts + 1 });
    }
    const reached = devices.filter((device) => device.state === 'scheduled' && !device.rolling_back);
    for (const { state: from } of reached) countMove(state, from, 'sent', noPlace, now);
    // The operator waits for the next deadline that it knows. A further attempt, which changes no count, has a new one.
    const isAwaited = devices.some((device) => device.deadline_at === null);
    if (reached.length > 0 || isAwaited || state.spec.maxPerMinute > 0) await saveRollout(tx, state, this.clock);
    else await publishChanges(tx, state, [], this.clock);
  }
}

const idsOf = (commands: readonly OpenCommand[]): string[] => commands.map((command) => command.correlation_id);

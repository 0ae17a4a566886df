// Delivers commands to a device: each to one taker at a time, repeatedly until the device responds.
import type { JsonObject } from '@bufbuild/protobuf';
import type { Clock } from '../../platform/clock.ts';
import { Batches } from '../../platform/concurrency/keyed-batches.ts';
import { LargeReads } from '../../platform/concurrency/large-reads.ts';
import type { Database } from '../../platform/database/database.ts';
import { isId } from '../../platform/ids.ts';
import { rowsOf } from '../../platform/statements/index-plans.ts';
import { jsonBytes } from '../../platform/statements/sized-rows.ts';
import type { ProfileReader } from '../../policies/profile-reader.ts';
import { type CommandRow, handOut, type OpenCommand, openStatuses } from '../commands/commands.ts';
import { mayDeliver } from '../ota/delivery/delivery-decision.ts';
import { untilOpening } from '../ota/delivery/delivery-rate.ts';
import { UpdateDelivery } from '../ota/delivery/update-delivery.ts';
import { deliveryWindow } from '../ota/rollouts/decisions/rollout-policy.ts';
import { fromColumn } from '../ota/rollouts/decisions/rollout-spec.ts';

/** Maximum commands delivered by one poll. */
const maxCommandsPerPoll = 20;

/** Bytes of parameters that one poll delivers; a larger command is delivered alone. */
const maxBytesPerPoll = 256 * 1024;

/** Polls that deliver more than this wait for their turn. */
const smallBytes = 16 * 1024;

/** Maximum devices whose commands one statement reads. */
const maxDevicesPerLook = 200;

/**
 * Delay until a poll that lost a command to another taker looks again, because it does not know when that one's turn
 * ends.
 */
const lossDelayMilliseconds = 1000;

/** Commands that a device gets now, and when to look again. */
export interface Taken {
  /** Oldest first; marked as delivered. */
  readonly commands: readonly CommandRow[];
  /** Milliseconds until more may become due; undefined if only a notification can make more due. */
  readonly nextMilliseconds: number | undefined;
  /** Rollouts that hold back commands of this device. */
  readonly heldBy: readonly string[];
}

/** Which commands a taker wants. */
export interface TakeOptions {
  /**
   * Only commands that were delivered before this time, by the database's clock, whether they are due again or not: an
   * earlier connection may have lost them. Oldest first.
   */
  readonly deliveredBefore?: Date | undefined;
  /** Maximum commands, at most what a poll gets. */
  readonly limit?: number;
  /** Only commands of this method. */
  readonly method?: string | undefined;
}

interface Asking {
  readonly deviceId: string;
  readonly deliveredBefore: Date | undefined;
  readonly method: string | undefined;
}

/** The condition and order of a device's next commands; `d` is the taker, $1 the tenant. */
const nextCommands = {
  due: `status IN ${openStatuses} AND not_before < 'infinity' AND expires_at > now()
        ORDER BY not_before, created_at, correlation_id`,
  delivered: `status IN ${openStatuses} AND not_before < 'infinity' AND expires_at > now()
        AND status = 'sent' AND sent_at < d.delivered_before ORDER BY created_at, correlation_id`,
};

/** The columns of a rollout that decide whether its commands may be delivered. */
interface RolloutColumns {
  readonly rollout_id: string;
  readonly profile_id: string;
  readonly phase: string;
  readonly outcome: string;
  readonly spec: JsonObject;
}

/** Why a rollout holds back its commands, or undefined if it does not. */
type Hold = 'paused' | 'closed' | undefined;

/** An open command. */
interface Found {
  readonly command: OpenCommand;
  /** Of its parameters. */
  readonly bytes: number;
  readonly isDue: boolean;
  /** Milliseconds until it is due. */
  readonly milliseconds: number;
  /** The rollout that sent it. */
  readonly rollout: { readonly rolloutId: string; readonly profileId: string; readonly hold: Hold } | undefined;
}

/** Takes a device's due commands and marks them as delivered. */
export class Delivery {
  private readonly database: Database;
  private readonly profiles: ProfileReader;
  private readonly clock: Clock;
  private readonly updates: UpdateDelivery;
  private readonly large = new LargeReads();
  private readonly looks = {
    due: this.batches('due'),
    delivered: this.batches('delivered'),
  };

  constructor(database: Database, profiles: ProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
    this.updates = new UpdateDelivery(database, profiles, clock);
  }

  /** Returns the commands that the device gets now. */
  async take(tenantId: string, deviceId: string, options: TakeOptions = {}): Promise<Taken> {
    if (!isId(deviceId)) return { commands: [], nextMilliseconds: undefined, heldBy: [] };
    const { deliveredBefore, limit = maxCommandsPerPoll, method } = options;
    const looks = this.looks[deliveredBefore ? 'delivered' : 'due'];
    const found = await looks.add(tenantId, { deviceId, deliveredBefore, method });
    const waits = found.filter(({ isDue }) => !isDue).map(({ milliseconds }) => milliseconds);
    const due = found.filter(({ isDue }) => isDue);
    const held = due.flatMap(({ rollout }) => (rollout?.hold ? [rollout] : []));
    if (held.some(({ hold }) => hold === 'closed')) waits.push(untilOpening(deviceId, this.clock.now()));

    const freeDue = due.filter(({ rollout }) => !rollout?.hold);
    const free = fitting(freeDue.slice(0, limit));
    const plain = free.filter(({ rollout }) => !rollout);
    const claims = free.flatMap(({ command, rollout }) =>
      rollout ? [this.updates.take({ command, ...rollout }).then((row) => (row ? [row] : []))] : [],
    );
    if (plain.length > 0) claims.push(this.handOut(tenantId, plain));
    const commands = await settled(claims);
    if (commands.length < free.length) waits.push(lossDelayMilliseconds);
    if (free.length < freeDue.length) waits.push(0);
    return {
      commands: commands.sort(byAge),
      nextMilliseconds: waits.length > 0 ? Math.min(...waits) : undefined,
      heldBy: [...new Set(held.map(({ rolloutId }) => rolloutId))],
    };
  }

  private handOut(tenantId: string, found: readonly Found[]): Promise<CommandRow[]> {
    const commands = found.map(({ command }) => command);
    const bytes = found.reduce((sum, one) => sum + one.bytes, 0);
    return this.large.run(tenantId, bytes, smallBytes, () =>
      this.database.tenant(tenantId, (tx) => handOut(tx, tenantId, commands)),
    );
  }

  private batches(kind: keyof typeof nextCommands): Batches<Asking, readonly Found[]> {
    return new Batches(maxDevicesPerLook, (tenantId, asking) => this.look(kind, tenantId, asking));
  }

  /** Reads the next open commands of each device, without what they tell the device: that can be large. */
  private async look(
    kind: keyof typeof nextCommands,
    tenantId: string,
    asking: readonly Asking[],
  ): Promise<readonly (readonly Found[])[]> {
    type Row = OpenCommand & {
      bytes: number;
      place: number;
      is_due: boolean;
      milliseconds: number;
      rollout: RolloutColumns | null;
    } & Record<string, unknown>;
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<Row>(
        `SELECT c.tenant_id, c.correlation_id, c.device_id, c.status, c.attempts, c.rollout_id, c.created_at,
           ${jsonBytes('c.params')} AS bytes, d.place::int4 AS place, ${kind === 'due' ? 'c.not_before <= now()' : 'true'} AS is_due,
           ceil(extract(epoch FROM c.not_before - now()) * 1000)::float8 AS milliseconds,
           CASE WHEN r.rollout_id IS NOT NULL THEN to_jsonb(r) END AS rollout
         FROM ${rowsOf('$2::uuid[]', '$3::timestamptz[]', '$5::text[]')}
           AS d (device_id, delivered_before, method, place)
         CROSS JOIN LATERAL (
           SELECT * FROM device_commands
           WHERE tenant_id = $1 AND device_id = d.device_id AND (d.method IS NULL OR device_commands.method = d.method)
             AND ${nextCommands[kind]} LIMIT $4) AS c
         LEFT JOIN (SELECT rollout_id, profile_id, phase, outcome, spec FROM ota_rollouts WHERE tenant_id = $1) AS r
           ON r.rollout_id = c.rollout_id
         ORDER BY d.place, ${kind === 'due' ? 'c.not_before, ' : ''}c.created_at, c.correlation_id`,
        [
          tenantId,
          asking.map(({ deviceId }) => deviceId),
          asking.map(({ deliveredBefore }) => deliveredBefore),
          // One more, which shows when the next is due.
          maxCommandsPerPoll + 1,
          asking.map(({ method }) => method),
        ],
      ),
    );
    const rollouts = new Map<string, RolloutColumns>();
    for (const { is_due: isDue, rollout } of rows) if (isDue && rollout) rollouts.set(rollout.rollout_id, rollout);
    const holds = new Map<string, Hold>();
    for (const [rolloutId, rollout] of rollouts) holds.set(rolloutId, await this.holdOf(tenantId, rollout));

    const found: Found[][] = asking.map(() => []);
    for (const { bytes, place, is_due: isDue, milliseconds, rollout, ...command } of rows) {
      found[place - 1]!.push({
        command,
        bytes,
        isDue,
        milliseconds,
        rollout: rollout
          ? { rolloutId: rollout.rollout_id, profileId: rollout.profile_id, hold: holds.get(rollout.rollout_id) }
          : undefined,
      });
    }
    return found;
  }

  /** Returns why a rollout holds back its commands. The check under the rollout's lock is authoritative. */
  private async holdOf(tenantId: string, rollout: RolloutColumns): Promise<Hold> {
    if (rollout.phase === 'paused') return 'paused';
    // Check the commands of a finished rollout once more under its lock, then hold them permanently.
    if (rollout.phase === 'completed') return undefined;
    const policy = (await this.profiles.get(tenantId, rollout.profile_id))?.otaPolicy;
    const window = deliveryWindow(fromColumn(rollout.spec), policy);
    return mayDeliver({ ...rollout, window }, new Date(this.clock.now())) ? undefined : 'closed';
  }
}

/** Returns the first commands that one poll may deliver. */
function fitting(found: readonly Found[]): readonly Found[] {
  let bytes = 0;
  const end = found.findIndex((one, index) => (bytes += one.bytes) > maxBytesPerPoll && index > 0);
  return end === -1 ? found : found.slice(0, end);
}

/**
 * Returns what was taken, even if other claims failed, because it is marked as delivered. Throws when nothing was taken
 * and something failed.
 */
async function settled(claims: readonly Promise<readonly CommandRow[]>[]): Promise<CommandRow[]> {
  const outcomes = await Promise.allSettled(claims);
  const taken = outcomes.flatMap((outcome) => (outcome.status === 'fulfilled' ? outcome.value : []));
  const failure = outcomes.find((outcome) => outcome.status === 'rejected');
  if (taken.length === 0 && failure) throw failure.reason;
  return taken;
}

const byAge = (a: CommandRow, b: CommandRow): number =>
  a.created_at.getTime() - b.created_at.getTime() || (a.correlation_id < b.correlation_id ? -1 : 1);

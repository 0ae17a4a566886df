// Hands commands to a device: those that are due and not held, each to one taker only.
import { fromJson, type JsonValue } from '@bufbuild/protobuf';
import { OtaRolloutSpecSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { ProfileReader } from '../../device-registry/profile-reader.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database.ts';
import { mayDeliver } from '../ota/delivery.ts';
import { deliveryWindow, deviceTimeout } from '../ota/policy.ts';
import { findRolloutDevice, updateRolloutDevice } from '../ota/rollout-devices.ts';
import { countMove, noPlace } from '../ota/rollout-state.ts';
import { lockRollout, saveRollout } from '../ota/rollout-store.ts';
import type { CommandRow } from './commands.ts';

/** Commands handed out by one poll at the most. */
const commandsPerPoll = 20;

/** A command that may be handed out now, and how many seconds the device then has for it (0: not an update). */
interface Allowed {
  readonly command: CommandRow;
  readonly timeoutSeconds: number;
}

type PendingRow = CommandRow & Record<string, unknown>;

/** Takes a device's due commands and marks them sent. */
export class Delivery {
  private readonly database: Database;
  private readonly profiles: ProfileReader;
  private readonly clock: Clock;

  constructor(database: Database, profiles: ProfileReader, clock: Clock) {
    this.database = database;
    this.profiles = profiles;
    this.clock = clock;
  }

  /** Commands that the device gets now, oldest first; they are marked sent when this resolves. */
  async take(tenantId: string, deviceId: string): Promise<CommandRow[]> {
    const due = await this.due(tenantId, deviceId);
    if (due.length === 0) return [];
    const allowed = await this.allowed(tenantId, due);
    const taken: CommandRow[] = [];
    for (const { command, timeoutSeconds } of allowed) {
      const sent = await this.database.tenant(tenantId, (tx) =>
        command.rollout_id === null
          ? markSent(tx, command)
          : this.deliverUpdate(tx, command, command.rollout_id, timeoutSeconds),
      );
      if (sent) taken.push(sent);
    }
    return taken;
  }

  private due(tenantId: string, deviceId: string): Promise<CommandRow[]> {
    return this.database.read(tenantId, async (tx) => {
      const { rows } = await tx.query<PendingRow>(
        `SELECT * FROM device_commands
         WHERE tenant_id = $1 AND device_id = $2 AND status IN ('queued', 'scheduled')
           AND not_before <= now() AND expires_at > now()
         ORDER BY created_at, correlation_id LIMIT $3`,
        [tenantId, deviceId, commandsPerPoll],
      );
      return rows;
    });
  }

  /**
   * Leaves out the commands of rollouts that hold them: paused, or outside their window. Says how long a device may take for
   * each of the others: read here, because a transaction that waited for a second connection would keep its own, and many of
   * them the whole pool.
   */
  private async allowed(tenantId: string, due: readonly CommandRow[]): Promise<Allowed[]> {
    const rolloutIds = [...new Set(due.flatMap((command) => command.rollout_id ?? []))];
    if (rolloutIds.length === 0) return due.map((command) => ({ command, timeoutSeconds: 0 }));
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<{ rollout_id: string; phase: string; profile_id: string; spec: JsonValue }>(
        `SELECT rollout_id, phase, profile_id, spec FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = ANY($2)`,
        [tenantId, rolloutIds],
      ),
    );
    const open = new Map<string, number>();
    for (const row of rows) {
      const profile = await this.profiles.get(tenantId, row.profile_id);
      const spec = fromJson(OtaRolloutSpecSchema, row.spec, { ignoreUnknownFields: true });
      const window = deliveryWindow(spec, profile?.otaPolicy);
      if (!mayDeliver({ phase: row.phase, window }, new Date(this.clock.now()))) continue;
      open.set(row.rollout_id, deviceTimeout(spec, profile?.otaPolicy));
    }
    return due.flatMap((command) => {
      const timeoutSeconds = command.rollout_id === null ? 0 : open.get(command.rollout_id);
      return timeoutSeconds === undefined ? [] : [{ command, timeoutSeconds }];
    });
  }

  /** Delivery of an update: under the rollout's lock, so that a pause and a delivery never cross. */
  private async deliverUpdate(
    tx: Transaction,
    command: CommandRow,
    rolloutId: string,
    timeoutSeconds: number,
  ): Promise<CommandRow | undefined> {
    const { tenant_id: tenantId, device_id: deviceId } = command;
    const state = await lockRollout(tx, tenantId, rolloutId);
    if (state.phase !== 'active' && state.phase !== 'rolling_back') return undefined;
    const device = await findRolloutDevice(tx, tenantId, rolloutId, deviceId);
    if (device?.correlation_id !== command.correlation_id) return undefined;
    const sent = await markSent(tx, command);
    if (!sent) return undefined;
    const now = new Date(this.clock.now());
    const deadlineAt = new Date(now.getTime() + timeoutSeconds * 1000);
    const first = device.state === 'scheduled';
    await updateRolloutDevice(tx, tenantId, rolloutId, deviceId, {
      ...(first ? { state: 'sent' as const } : {}),
      attempts: device.attempts + 1,
      deadlineAt,
    });
    if (first && !device.rolling_back) {
      countMove(state, 'scheduled', 'sent', noPlace, now);
      await saveRollout(tx, state, this.clock);
    }
    return sent;
  }
}

/** Marks a command sent unless somebody else took it; answers it as it is now. */
async function markSent(tx: Transaction, command: CommandRow): Promise<CommandRow | undefined> {
  const { rows } = await tx.query<PendingRow>(
    `UPDATE device_commands SET status = 'sent', sent_at = now(), attempts = attempts + 1
     WHERE tenant_id = $1 AND correlation_id = $2 AND status IN ('queued', 'scheduled') RETURNING *`,
    [command.tenant_id, command.correlation_id],
  );
  return rows[0];
}

// Commands to devices: queued in PostgreSQL, handed out when the device asks, answered once.
import type { JsonObject } from '@bufbuild/protobuf';
import type { Transaction } from '../../platform/database.ts';
import { newId } from '../../platform/ids.ts';

/** The notification channel that wakes long polls and streams; payload `tenant/device`. */
export const commandsChannel = 'kellet_commands';

/** Where a command stands (API.md, RPC). */
export type CommandStatus = 'queued' | 'scheduled' | 'sent' | 'successful' | 'failure' | 'expired' | 'cancelled';

/** A command's row. */
export interface CommandRow {
  readonly tenant_id: string;
  readonly correlation_id: string;
  readonly device_id: string;
  readonly method: string;
  readonly params: JsonObject;
  readonly status: CommandStatus;
  readonly response: JsonObject | null;
  readonly error: string;
  readonly persistent: boolean;
  readonly rollout_id: string | null;
  readonly attempts: number;
  readonly created_at: Date;
  readonly sent_at: Date | null;
  readonly finished_at: Date | null;
  readonly expires_at: Date;
}

/** A command as its sender knows it. */
export interface NewCommand {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly method: string;
  readonly params: JsonObject;
  /** Kept until an offline device comes back. */
  readonly persistent: boolean;
  readonly expiresInSeconds: number;
  readonly idempotencyKey?: string;
}

/**
 * Queues one command; with an idempotency key that this device had before, answers the earlier command and queues nothing.
 */
export async function enqueueCommand(tx: Transaction, command: NewCommand): Promise<{ correlationId: string }> {
  const { rows } = await tx.query<{ correlation_id: string }>(
    `INSERT INTO device_commands
       (tenant_id, correlation_id, device_id, method, params, status, persistent, idempotency_key, expires_at)
     VALUES ($1, $2, $3, $4, $5, 'queued', $6, $7, now() + $8 * interval '1 second')
     ON CONFLICT (tenant_id, device_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
     RETURNING correlation_id`,
    [
      command.tenantId,
      newId(),
      command.deviceId,
      command.method,
      JSON.stringify(command.params),
      command.persistent,
      command.idempotencyKey ?? null,
      command.expiresInSeconds,
    ],
  );
  if (rows[0]) {
    await wakeDevices(tx, command.tenantId, [command.deviceId]);
    return { correlationId: rows[0].correlation_id };
  }
  const earlier = await tx.query<{ correlation_id: string }>(
    `SELECT correlation_id FROM device_commands WHERE tenant_id = $1 AND device_id = $2 AND idempotency_key = $3`,
    [command.tenantId, command.deviceId, command.idempotencyKey],
  );
  return { correlationId: earlier.rows[0]!.correlation_id };
}

/** A rollout's command to one of its devices. */
export interface RolloutCommand {
  readonly deviceId: string;
  readonly correlationId: string;
  /** Not handed out before. */
  readonly notBefore: Date;
}

/** Queues a rollout's persistent commands, all with the same method and parameters. The rollout ends them, not the calendar. */
export async function enqueueRolloutCommands(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  method: string,
  params: JsonObject,
  commands: readonly RolloutCommand[],
): Promise<void> {
  await tx.query(
    `INSERT INTO device_commands
       (tenant_id, correlation_id, device_id, method, params, status, persistent, rollout_id, not_before, expires_at)
     SELECT $1, correlation_id, device_id, $2, $3, 'scheduled', true, $4, not_before, now() + interval '10 years'
     FROM unnest($5::uuid[], $6::uuid[], $7::timestamptz[]) AS c (correlation_id, device_id, not_before)`,
    [
      tenantId,
      method,
      JSON.stringify(params),
      rolloutId,
      commands.map((command) => command.correlationId),
      commands.map((command) => command.deviceId),
      commands.map((command) => command.notBefore),
    ],
  );
  await wakeDevices(
    tx,
    tenantId,
    commands.map((command) => command.deviceId),
  );
}

/** Cancels a rollout's commands that were not handed out yet. */
export async function cancelUndelivered(tx: Transaction, tenantId: string, rolloutId: string): Promise<void> {
  await tx.query(
    `UPDATE device_commands SET status = 'cancelled', finished_at = now()
     WHERE tenant_id = $1 AND rollout_id = $2 AND status = 'scheduled'`,
    [tenantId, rolloutId],
  );
}

/** Hands a rollout's commands out again: for another attempt. */
export async function rescheduleCommands(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
): Promise<void> {
  const { rows } = await tx.query<{ device_id: string }>(
    `UPDATE device_commands SET status = 'scheduled', finished_at = NULL, error = '', not_before = now()
     WHERE tenant_id = $1 AND correlation_id = ANY($2) RETURNING device_id`,
    [tenantId, correlationIds],
  );
  await wakeDevices(
    tx,
    tenantId,
    rows.map((row) => row.device_id),
  );
}

/** Ends a rollout's commands: what the device reported is the answer. */
export async function finishRolloutCommands(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
  status: 'successful' | 'failure' | 'expired' | 'cancelled',
): Promise<void> {
  await tx.query(
    `UPDATE device_commands SET status = $3, finished_at = now()
     WHERE tenant_id = $1 AND correlation_id = ANY($2) AND status <> $3`,
    [tenantId, correlationIds, status],
  );
}

/** Wakes whoever waits for commands of these devices, once the transaction commits. */
export async function wakeDevices(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query(
    `SELECT pg_notify('${commandsChannel}', $1 || '/' || device_id) FROM unnest($2::text[]) AS d (device_id)`,
    [tenantId, deviceIds],
  );
}

// Commands to devices: queued in PostgreSQL and delivered until the device responds.
import type { JsonObject } from '@bufbuild/protobuf';
import { commandsChannel } from '../../platform/database/channels.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { countedLimit } from '../../platform/database/number-limits.ts';
import { newId } from '../../platform/ids.ts';
import { isLonger } from '../../platform/requests/fields.ts';
import { storable } from '../../platform/shorten.ts';
import { rowsOf } from '../../platform/statements/index-plans.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { type Visibility, visibleDevices } from '../../platform/visibility.ts';
import { redeliverySeconds } from './redelivery.ts';

/** States of a command. */
export type CommandStatus = 'queued' | 'scheduled' | 'sent' | 'successful' | 'failure' | 'expired' | 'cancelled';

/** Maximum characters of an error that is stored. */
const maxErrorLength = 4096;

/**
 * Returns an error reported by a device as it is stored: a long one is cut rather than rejected, between two characters, and loses
 * what PostgreSQL cannot hold.
 */
export function keptError(error: string): string {
  const cut = isLonger(error, maxErrorLength)
    ? [...error.slice(0, 2 * maxErrorLength)].slice(0, maxErrorLength).join('')
    : error;
  return storable(cut);
}

/** States of a command that has not ended, as SQL. */
export const openStatuses = `('queued', 'scheduled', 'sent')`;

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

/** What decides whether a command is delivered: all but what a device is told, which can be large. */
export type OpenCommand = Pick<
  CommandRow,
  'tenant_id' | 'correlation_id' | 'device_id' | 'status' | 'attempts' | 'rollout_id' | 'created_at'
>;

/** A command to be queued. */
export interface NewCommand {
  readonly tenantId: string;
  readonly deviceId: string;
  readonly method: string;
  readonly params: JsonObject;
  /** Kept until an offline device reconnects. */
  readonly persistent: boolean;
  readonly expiresInSeconds: number;
  readonly idempotencyKey?: string;
}

/**
 * Queues one command. Commands queued under a lock are delivered in the order in which they got it, because their time is
 * that of the statement, not of the transaction. If the device already has a command with this idempotency key, returns
 * that one and queues nothing.
 */
export async function enqueueCommand(tx: Transaction, command: NewCommand): Promise<{ correlationId: string }> {
  const { rows } = await tx.query<{ correlation_id: string }>(
    `INSERT INTO device_commands
       (tenant_id, correlation_id, device_id, method, params, status, persistent, idempotency_key, expires_at,
        created_at, not_before)
     VALUES ($1, $2, $3, $4, $5, 'queued', $6, $7, statement_timestamp() + $8 * interval '1 second',
             statement_timestamp(), statement_timestamp())
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
    wakeDevices(tx, command.tenantId, [command.deviceId]);
    return { correlationId: rows[0].correlation_id };
  }
  const earlier = await tx.query<{ correlation_id: string }>(
    `SELECT correlation_id FROM device_commands WHERE tenant_id = $1 AND device_id = $2 AND idempotency_key = $3`,
    [command.tenantId, command.deviceId, command.idempotencyKey],
  );
  // The sweep may have deleted it in the meantime.
  return earlier.rows[0] ? { correlationId: earlier.rows[0].correlation_id } : enqueueCommand(tx, command);
}

/** Commands that users send to a device, while they have not ended. */
export const commandLimit = countedLimit(
  'device',
  `SELECT FROM device_commands WHERE tenant_id = $1 AND device_id = $2 AND status IN ${openStatuses}`,
  1000,
  'commands that have not ended',
);

/** Columns that show an overdue command as expired before the sweep marks it; after `*`. */
const expiryColumns = `
  CASE WHEN status IN ${openStatuses} AND expires_at <= now() THEN 'expired' ELSE status END AS status,
  CASE WHEN status IN ${openStatuses} AND expires_at <= now() THEN expires_at ELSE finished_at END AS finished_at`;

/** Returns the current state of a command to a device that users of `customer` see (null: all users), or undefined. */
export async function findCommand(
  tx: Transaction,
  tenantId: string,
  correlationId: string,
  visibility: Visibility,
  lock: '' | 'FOR UPDATE' = '',
): Promise<CommandRow | undefined> {
  const values: unknown[] = [tenantId, correlationId];
  const { rows } = await tx.query<CommandRow & Record<string, unknown>>(
    `SELECT *, ${expiryColumns} FROM device_commands c WHERE tenant_id = $1 AND correlation_id = $2
       ${visibleDevices('c', visibility, values)} ${lock}`,
    values,
  );
  return rows[0];
}

/** What tells whether a command has ended, or when it will at the latest, and how large it is. */
export interface CommandState extends Pick<CommandRow, 'status' | 'finished_at' | 'expires_at'> {
  /** Size of what the device was told and has responded. */
  readonly bytes: number;
}

/** As {@link findCommand}, without what the device was told and has responded: as objects that takes up to megabytes. */
export async function findCommandState(
  tx: Transaction,
  tenantId: string,
  correlationId: string,
  visibility: Visibility,
): Promise<CommandState | undefined> {
  const values: unknown[] = [tenantId, correlationId];
  const { rows } = await tx.query<CommandState & Record<string, unknown>>(
    `SELECT expires_at, ${jsonBytes('params')} + coalesce(${jsonBytes('response')}, 0) AS bytes, ${expiryColumns}
     FROM device_commands c WHERE tenant_id = $1 AND correlation_id = $2
       ${visibleDevices('c', visibility, values)}`,
    values,
  );
  return rows[0];
}

/** Position at which a page of commands ended. The time is text, because a Date would round it. */
export interface CommandCursor {
  readonly time: string;
  readonly id: string;
}

/** A command of a list, with the time of its creation as text. */
export type ListedCommand = CommandRow & { readonly time: string };

/** Lists a device's commands, oldest first. */
export async function listCommands(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  status: string | undefined,
  after: CommandCursor | undefined,
  room: Room,
): Promise<(ListedCommand & SizedRow)[]> {
  const { rows } = await tx.query<ListedCommand & SizedRow & Record<string, unknown>>(
    sizedRows(
      `SELECT *, ${expiryColumns}, created_at::text AS time,
         ${jsonBytes('params')} + coalesce(${jsonBytes('response')}, 0) AS row_bytes
       FROM device_commands
       WHERE tenant_id = $1 AND device_id = $2
         AND ($3::text IS NULL OR $3 = CASE WHEN status IN ${openStatuses} AND expires_at <= now() THEN 'expired' ELSE status END)
         AND ($4::uuid IS NULL OR (created_at, correlation_id) > ($5::timestamptz, $4))`,
      'created_at, correlation_id',
      6,
    ),
    [tenantId, deviceId, status, after?.id, after?.time, room.limit, room.bytes],
  );
  return rows;
}

/** Ends a command that the transaction has locked, and wakes the calls that wait for that. */
export async function endCommand(
  tx: Transaction,
  { tenant_id: tenantId, correlation_id: correlationId }: CommandRow,
  status: 'successful' | 'failure' | 'cancelled',
  response?: JsonObject,
  error = '',
): Promise<CommandRow> {
  const { rows } = await tx.query<CommandRow & Record<string, unknown>>(
    `UPDATE device_commands SET status = $3, response = $4, error = $5, finished_at = now()
     WHERE tenant_id = $1 AND correlation_id = $2 RETURNING *`,
    [tenantId, correlationId, status, response && JSON.stringify(response), error],
  );
  tx.hint(commandsChannel, [correlationId]);
  return rows[0]!;
}

/** A rollout's command to one of its devices. */
export interface RolloutCommand {
  readonly deviceId: string;
  readonly correlationId: string;
  /** Not delivered before. */
  readonly notBefore: Date;
}

/**
 * SQL: the open update commands of ended rollouts for devices ($2) and a type of package ($3). The rollouts are looked up one by
 * one: a join would be planned by statistics.
 */
const endedUpdates = `tenant_id = $1 AND correlation_id = ANY (ARRAY (
  SELECT c.correlation_id FROM device_commands c
  CROSS JOIN LATERAL (
    SELECT phase FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = c.rollout_id LIMIT 1) AS r
  WHERE c.tenant_id = $1 AND c.device_id = ANY($2::uuid[]) AND c.status IN ${openStatuses}
    AND c.method = 'ota_start' AND c.params->>'type' = $3 AND r.phase = 'completed'))`;

/** Returns a function that changes those commands by an UPDATE that is complete up to their condition. */
const change =
  (update: string) =>
  async (tx: Transaction, tenantId: string, deviceIds: readonly string[], type: string): Promise<void> => {
    await tx.query(`${update} ${endedUpdates}`, [tenantId, deviceIds, type]);
  };

/** Holds back commands of ended rollouts for devices for which there is another update of the type. */
export const holdEndedUpdates = change(`UPDATE device_commands SET not_before = 'infinity' WHERE`);

/** Cancels those commands: the devices have got the other update. */
export const cancelEndedUpdates = change(`UPDATE device_commands SET status = 'cancelled', finished_at = now() WHERE`);

const resumeEndedUpdates = change(`UPDATE device_commands SET not_before = now() WHERE not_before = 'infinity' AND`);

/** Delivers those commands after all: the other update is withdrawn. */
export async function releaseEndedUpdates(
  tx: Transaction,
  tenantId: string,
  deviceIds: readonly string[],
  type: string,
): Promise<void> {
  if (deviceIds.length === 0) return;
  await resumeEndedUpdates(tx, tenantId, deviceIds, type);
  wakeDevices(tx, tenantId, deviceIds);
}

/**
 * Queues a rollout's persistent commands, all with the same method and parameters. Their expiry starts with the first
 * delivery. Commands of ended rollouts for these devices with the same package type are held back.
 */
export async function enqueueRolloutCommands(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  method: string,
  params: JsonObject,
  commands: readonly RolloutCommand[],
): Promise<void> {
  if (commands.length === 0) return;
  const deviceIds = commands.map((command) => command.deviceId);
  // Issued together, they share a round trip.
  await Promise.all([
    holdEndedUpdates(tx, tenantId, deviceIds, params['type'] as string),
    tx.query(
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
        deviceIds,
        commands.map((command) => command.notBefore),
      ],
    ),
  ]);
  wakeDevices(tx, tenantId, deviceIds);
}

/** Cancels those of a rollout's commands that were not delivered yet. */
export async function cancelUndelivered(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
): Promise<void> {
  await tx.query(
    `UPDATE device_commands SET status = 'cancelled', finished_at = now()
     WHERE tenant_id = $1 AND correlation_id = ANY($2) AND status = 'scheduled'`,
    [tenantId, correlationIds],
  );
}

/** Cancels the open commands of devices that are gone, and wakes the calls that wait for their end. */
export async function cancelCommandsOf(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  const { rows } = await tx.query<{ correlation_id: string }>(
    `UPDATE device_commands SET status = 'cancelled', finished_at = now()
     WHERE tenant_id = $1 AND device_id = ANY($2) AND status IN ${openStatuses} AND expires_at > now()
     RETURNING correlation_id`,
    [tenantId, deviceIds],
  );
  tx.hint(
    commandsChannel,
    rows.map((row) => row.correlation_id),
  );
}

/** Ends commands that have not ended yet. */
export async function endOpenCommands(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
  status: 'expired' | 'cancelled',
): Promise<void> {
  await tx.query(
    `UPDATE device_commands SET status = $3, finished_at = now()
     WHERE tenant_id = $1 AND correlation_id = ANY($2) AND status IN ${openStatuses}`,
    [tenantId, correlationIds, status],
  );
}

/** Stops redelivery: the devices have these commands. They stay open until a response or their expiry. */
export async function stopRedelivery(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
): Promise<void> {
  await tx.query(
    `UPDATE device_commands SET not_before = 'infinity' WHERE tenant_id = $1 AND correlation_id = ANY($2)`,
    [tenantId, correlationIds],
  );
}

/** Postpones commands that have not been delivered to these times. */
export async function postponeCommands(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
  times: readonly Date[],
): Promise<void> {
  if (correlationIds.length === 0) return;
  await tx.query(
    `UPDATE device_commands c SET not_before = d.not_before
     FROM unnest($2::uuid[], $3::timestamptz[]) AS d (correlation_id, not_before)
     WHERE c.tenant_id = $1 AND c.correlation_id = ANY($2::uuid[]) AND c.correlation_id = d.correlation_id
       AND c.status = 'scheduled'`,
    [tenantId, correlationIds, times],
  );
}

/**
 * Marks commands as delivered and returns their rows. Omits those that were delivered by another caller or have ended
 * since they were read. A rollout's command delivered for the first time expires after `updateSeconds`.
 */
export async function handOut(
  tx: Transaction,
  tenantId: string,
  commands: readonly OpenCommand[],
  updateSeconds = 0,
): Promise<CommandRow[]> {
  const { rows } = await tx.query<CommandRow & Record<string, unknown>>(
    `WITH taken AS (
       SELECT c.correlation_id, d.seconds FROM device_commands c
       JOIN unnest($2::uuid[], $3::int4[], $4::int4[]) AS d (correlation_id, attempts, seconds)
         ON d.correlation_id = c.correlation_id AND d.attempts = c.attempts
       WHERE c.tenant_id = $1 AND c.status IN ${openStatuses} AND c.expires_at > now()
       FOR UPDATE OF c SKIP LOCKED)
     UPDATE device_commands c SET status = 'sent', sent_at = now(), attempts = c.attempts + 1,
       not_before = now() + taken.seconds * interval '1 second',
       expires_at = CASE WHEN c.status = 'scheduled' THEN least(c.expires_at, now() + $5::int4 * interval '1 second')
                    ELSE c.expires_at END
     FROM taken WHERE c.tenant_id = $1 AND c.correlation_id = taken.correlation_id RETURNING c.*`,
    [
      tenantId,
      commands.map((command) => command.correlation_id),
      commands.map((command) => command.attempts),
      commands.map((command) => redeliverySeconds(command.attempts + 1)),
      updateSeconds,
    ],
  );
  return rows;
}

/** Ends a rollout's commands; what the device reported is the response. */
export async function finishRolloutCommands(
  tx: Transaction,
  tenantId: string,
  correlationIds: readonly string[],
  status: 'successful' | 'failure' | 'expired' | 'cancelled',
): Promise<void> {
  if (correlationIds.length === 0) return;
  await tx.query(
    `UPDATE device_commands SET status = $3, finished_at = now()
     WHERE tenant_id = $1 AND correlation_id = ANY($2) AND status <> $3`,
    [tenantId, correlationIds, status],
  );
}

/** Wakes callers waiting for commands of these devices, once the transaction commits. */
function wakeDevices(tx: Transaction, tenantId: string, deviceIds: readonly string[]): void {
  tx.hint(
    commandsChannel,
    deviceIds.map((deviceId) => `${tenantId}/${deviceId}`),
  );
}

/** Wakes callers waiting for commands that this rollout holds back, once the transaction commits. */
export function wakeRollout(tx: Transaction, tenantId: string, rolloutId: string): void {
  tx.hint(commandsChannel, [`${tenantId}/${rolloutId}`]);
}

/** A device that waits for commands. */
export interface WaitingDevice {
  readonly tenantId: string;
  readonly deviceId: string;
}

/** Returns those of the devices that have a command to be handed out: commands of paused rollouts wait for those to resume. */
export async function devicesWithCommands(
  tx: Transaction,
  devices: readonly WaitingDevice[],
): Promise<WaitingDevice[]> {
  const { rows } = await tx.query<{ tenant_id: string; device_id: string }>(
    `SELECT d.tenant_id, d.device_id::text FROM ${rowsOf('$1::text[]', '$2::uuid[]')} AS d (tenant_id, device_id, place),
       LATERAL (SELECT FROM device_commands c WHERE c.tenant_id = d.tenant_id AND c.device_id = d.device_id
         AND c.status IN ${openStatuses} AND c.not_before <= now()
         AND (SELECT phase FROM ota_rollouts r WHERE r.tenant_id = c.tenant_id AND r.rollout_id = c.rollout_id LIMIT 1)
           IS DISTINCT FROM 'paused' LIMIT 1) AS command`,
    [devices.map((device) => device.tenantId), devices.map((device) => device.deviceId)],
  );
  return rows.map((row) => ({ tenantId: row.tenant_id, deviceId: row.device_id }));
}

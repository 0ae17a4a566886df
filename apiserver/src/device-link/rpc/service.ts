// DeviceLinkService: commands to devices and their responses.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import {
  DeviceLinkService,
  RpcRecord_Status,
  RpcRecord_StatusSchema,
  type ListRpcsRequest,
  type RpcRecordSchema,
  type SendRpcRequest,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { findDevice } from '../../device-registry/devices.ts';
import type { ProfileReader } from '../../policies/profile-reader.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { enumFilter } from '../../platform/enums.ts';
import { failedPrecondition, invalidArgument, notFound, permissionDenied } from '../../platform/errors.ts';
import { freeJsonField, textField } from '../../platform/fields.ts';
import { isId } from '../../platform/ids.ts';
import type { Platform, ServiceModule } from '../../config/module.ts';
import type { CallContext, ServiceRegistry } from '../../platform/rpc.ts';
import { CommandFeed } from '../commands/command-feed.ts';
import { commandSweep } from '../commands/command-sweep.ts';
import {
  endCommand,
  enqueueCommand,
  findCommand,
  keptError,
  listCommands,
  type CommandCursor,
  type CommandRow,
  type CommandStatus,
} from '../commands/commands.ts';
import { Delivery } from './delivery.ts';

/** Called at every sign of life of a device other than telemetry. */
export type NoteAlive = (tenantId: string, deviceId: string, atMilliseconds: number) => void;

const maxWaitSeconds = 60;
/**
 * Maximum concurrent polls of one device in this process. A device has one; earlier ones of broken connections stay
 * open for their requested time, and more than a few mean that the device keeps reconnecting.
 */
const maxPolls = 4;
const maxMethodLength = 128;
const maxIdempotencyKey = 255;
const largestParams = 65_536;
const largestResponse = 1024 * 1024;
const defaultLifetimeSeconds = { transient: 60, persistent: 7 * 24 * 3600 };
/** How a command can end. */
const endings: Partial<Record<CommandStatus, string>> = {
  successful: 'has succeeded',
  failure: 'has failed',
  expired: 'has expired',
  cancelled: 'was cancelled',
};
const finishedStatuses = Object.keys(endings) as readonly CommandStatus[];

/**
 * Maximum time that a wait for a command's end goes without a query, because the end of a rollout does not announce
 * each command.
 */
const maxLookIntervalMilliseconds = 10_000;

const alreadyEnded = (status: CommandStatus) => failedPrecondition(`the command ${endings[status]}`);

/** Creates the service. */
export function createRpc(platform: Platform, profiles: ProfileReader, alive: NoteAlive): ServiceModule {
  const { database, clock, paging } = platform;
  const feed = new CommandFeed(database);
  const delivery = new Delivery(database, profiles, clock);
  const sweep = commandSweep(platform);

  const register = (registry: ServiceRegistry): void =>
    registry.register(DeviceLinkService, {
      sendRpc: async (request, context) => toRecord(await send(database, request, context)),

      getRpc: async (request, context) => {
        checkWait(request.waitSeconds);
        const read = () =>
          database.read(context.tenantId, (tx) => getCommand(tx, context.tenantId, request.correlationId));
        const row = await feed.until({
          key: request.correlationId,
          milliseconds: request.waitSeconds * 1000,
          signal: context.signal,
          look: read,
          found: ({ status }) => finishedStatuses.includes(status),
          next: ({ expires_at: end }) => Math.min(end.getTime() - clock.now(), maxLookIntervalMilliseconds),
        });
        return toRecord(row);
      },

      listRpcs: (request, context) => list(database, paging, request, context),

      cancelRpc: (request, context) =>
        database.tenant(context.tenantId, async (tx) => {
          const row = await getCommand(tx, context.tenantId, request.correlationId, 'FOR UPDATE');
          if (row.rollout_id !== null)
            throw failedPrecondition('the command belongs to a rollout: skip the device there');
          if (row.status === 'cancelled') return toRecord(row);
          if (finishedStatuses.includes(row.status)) throw alreadyEnded(row.status);
          return toRecord(await endCommand(tx, row, 'cancelled'));
        }),

      listPendingRpcs: async (request, context) => {
        checkWait(request.waitSeconds);
        const { tenantId } = context;
        alive(tenantId, request.deviceId, clock.now());
        const { commands } = await feed.until({
          key: `${tenantId}/${request.deviceId}`,
          milliseconds: request.waitSeconds * 1000,
          signal: context.signal,
          look: () => delivery.take(tenantId, request.deviceId),
          found: (taken) => taken.commands.length > 0,
          next: (taken) => taken.nextMilliseconds,
          heldBy: (taken) => taken.heldBy.map((rolloutId) => `${tenantId}/${rolloutId}`),
          max: maxPolls,
        });
        return { commands: commands.map(toRecord) };
      },

      respondRpc: async (request, context) => {
        const response = request.response ?? {};
        freeJsonField('response', response, largestResponse);
        return database.tenant(context.tenantId, async (tx) => {
          // Locked, so that later ones of concurrent responses see the state after the first.
          const row = await getCommand(tx, context.tenantId, request.correlationId, 'FOR UPDATE');
          if (!(await mayRespond(tx, row, context))) throw permissionDenied('the command is not one to this device');
          const status = request.success ? 'successful' : 'failure';
          // The same response again is accepted: the reply to the first may have been lost.
          if (row.status === status) return toRecord(row);
          if (finishedStatuses.includes(row.status)) throw alreadyEnded(row.status);
          return toRecord(await endCommand(tx, row, status, response, keptError(request.error)));
        });
      },
    });
  return { register, start: async () => sweep.start(), stop: () => sweep.stop() };
}

function checkWait(seconds: number): void {
  if (seconds > maxWaitSeconds) throw invalidArgument(`wait_seconds must be from 0 to ${maxWaitSeconds}`);
}

async function send(database: Database, request: SendRpcRequest, context: CallContext): Promise<CommandRow> {
  if (request.method === '' || request.method.length > maxMethodLength) {
    throw invalidArgument(`method is required, at most ${maxMethodLength} characters`);
  }
  const params: JsonObject = request.params ?? {};
  freeJsonField('params', params, largestParams);
  textField('idempotency_key', request.idempotencyKey, { maximum: maxIdempotencyKey });
  const lifetime = defaultLifetimeSeconds[request.persistent ? 'persistent' : 'transient'];
  return database.tenant(context.tenantId, async (tx) => {
    // Held, so that a deletion at the same time cancels this command too.
    const device = isId(request.deviceId)
      ? await findDevice(tx, context.tenantId, request.deviceId, 'FOR SHARE')
      : undefined;
    if (!device) throw notFound('device_id');
    const { correlationId } = await enqueueCommand(tx, {
      tenantId: context.tenantId,
      deviceId: device.device_id,
      method: request.method,
      params,
      persistent: request.persistent,
      expiresInSeconds: request.expiresInSeconds || lifetime,
      idempotencyKey: request.idempotencyKey || undefined,
    });
    const row = await getCommand(tx, context.tenantId, correlationId);
    if (!isSame(row, { ...request, params, lifetimeSeconds: request.expiresInSeconds || lifetime })) {
      throw failedPrecondition('the idempotency_key was used for another command');
    }
    return row;
  });
}

/** Reports whether a command, which may be an earlier one with the same idempotency key, is the requested one. */
function isSame(
  row: CommandRow,
  wanted: Pick<SendRpcRequest, 'method' | 'persistent'> & { params: JsonObject; lifetimeSeconds: number },
): boolean {
  return (
    row.method === wanted.method &&
    row.persistent === wanted.persistent &&
    row.expires_at.getTime() - row.created_at.getTime() === wanted.lifetimeSeconds * 1000 &&
    // As they are stored: JSON has no -0.
    isDeepStrictEqual(row.params, JSON.parse(JSON.stringify(wanted.params)))
  );
}

/** Returns the current state of a command. Throws NOT_FOUND. */
async function getCommand(
  tx: Transaction,
  tenantId: string,
  correlationId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<CommandRow> {
  const row = isId(correlationId) ? await findCommand(tx, tenantId, correlationId, lock) : undefined;
  if (!row) throw notFound('correlation_id');
  return row;
}

async function list(
  database: Database,
  paging: Platform['paging'],
  request: ListRpcsRequest,
  context: CallContext,
): Promise<{ commands: MessageInitShape<typeof RpcRecordSchema>[]; nextPageToken: string }> {
  const { tenantId } = context;
  const status = enumFilter('status', RpcRecord_StatusSchema, request.status);
  const scope = [tenantId, 'commands by time', request.deviceId, status];
  // The page token works even when the sweep has deleted the last command shown.
  const page = paging.open<CommandCursor>(request, scope);
  const found = await database.read(tenantId, async (tx) => {
    if (!isId(request.deviceId) || !(await findDevice(tx, tenantId, request.deviceId))) throw notFound('device_id');
    return listCommands(tx, tenantId, request.deviceId, { status, after: page.after, limit: page.size + 1 });
  });
  const { rows, nextPageToken } = paging.close(found, page, scope, (row) => ({
    time: row.time,
    id: row.correlation_id,
  }));
  return { commands: rows.map(toRecord), nextPageToken };
}

/** Reports whether the caller may respond to a command: its device, or that device's gateway. */
async function mayRespond(tx: Transaction, row: CommandRow, context: CallContext): Promise<boolean> {
  if (row.device_id === context.caller.deviceId) return true;
  const device = await findDevice(tx, context.tenantId, row.device_id);
  return device?.gateway_device_id === context.caller.deviceId;
}

/** Converts a row to the public message. */
export function toRecord(row: CommandRow): MessageInitShape<typeof RpcRecordSchema> {
  return {
    correlationId: row.correlation_id,
    deviceId: row.device_id,
    method: row.method,
    params: row.params,
    status: RpcRecord_Status[row.status],
    response: row.response ?? undefined,
    error: row.error,
    persistent: row.persistent,
    attempts: row.attempts,
    createdAt: timestampFromDate(row.created_at),
    sentAt: row.sent_at ? timestampFromDate(row.sent_at) : undefined,
    finishedAt: row.finished_at ? timestampFromDate(row.finished_at) : undefined,
    expiresAt: timestampFromDate(row.expires_at),
  };
}

// DeviceLinkService: commands to devices and their responses.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject, MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import {
  DeviceLinkService,
  type ListRpcsRequest,
  RpcRecord_Status,
  RpcRecord_StatusSchema,
  type RpcRecordSchema,
  type SendRpcRequest,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import type { Platform, ServiceModule } from '../../config/module.ts';
import { childrenAmong, findDevice } from '../../device-registry/devices/devices.ts';
import type { Liveness } from '../../device-registry/liveness/liveness.ts';
import { LargeReads } from '../../platform/concurrency/large-reads.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { failedPrecondition, invalidArgument, notFound, permissionDenied } from '../../platform/errors.ts';
import { isId, storedId } from '../../platform/ids.ts';
import { enumFilter } from '../../platform/requests/enums.ts';
import { freeJsonField, textField } from '../../platform/requests/fields.ts';
import type { CallContext, Caller, ServiceRegistry } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { holdsInPart, visibilityOf } from '../../platform/visibility.ts';
import type { ProfileReader } from '../../policies/profile-reader.ts';
import { CommandFeed } from '../commands/command-feed.ts';
import { methodField } from '../commands/command-method.ts';
import { commandSweep } from '../commands/command-sweep.ts';
import {
  type CommandCursor,
  commandLimit,
  type CommandRow,
  endCommand,
  enqueueCommand,
  listCommands,
  type ListedCommand,
} from '../commands/commands.ts';
import { missedWakes } from '../commands/missed-wakes.ts';
import { Delivery } from './delivery.ts';
import { alreadyEnded, finishedStatuses, getCommand, getCommandState, recordResponse } from './responses.ts';

const maxWaitSeconds = 60;
/**
 * Maximum concurrent polls of one device in this process. A device has one; earlier ones of broken connections stay
 * open for their requested time, and more than a few mean that the device keeps reconnecting.
 */
const maxPolls = 4;
const maxIdempotencyKey = 255;
const largestParams = 65_536;
/** Commands of a page that waits for no turn: a response takes up to 1 MiB. */
const smallPage = 1;
/** A command of no more bytes waits for no turn either. */
const smallBytes = 65_536;
const defaultLifetimeSeconds = { transient: 60, persistent: 7 * 24 * 3600 };
/**
 * Maximum time that a wait for a command's end goes without a query, because the end of a rollout does not announce
 * each command.
 */
const maxLookIntervalMilliseconds = 10_000;

/** Receives signs of life (device-registry/liveness/liveness.ts). */
export type SignsOfLife = Pick<Liveness, 'seen'>;

/** The service, with what streams share with it. */
export interface RpcModule extends ServiceModule {
  readonly feed: CommandFeed;
  readonly delivery: Delivery;
}

/** Creates the service. */
export function createRpc(platform: Platform, profiles: ProfileReader, liveness: SignsOfLife): RpcModule {
  const { database, clock, paging } = platform;
  const feed = new CommandFeed(database);
  const delivery = new Delivery(database, profiles, clock);
  /** Turns of reads of large commands. */
  const large = new LargeReads();
  const loops = [commandSweep(platform), missedWakes(database, platform.logger, feed)];
  /** A call of a device is a sign of its life and, if it is a gateway, of the child for which it calls. */
  const noteAlive = (tenantId: string, ...deviceIds: string[]): void => {
    const now = clock.now();
    for (const deviceId of new Set(deviceIds)) liveness.seen(tenantId, deviceId, now, 'poll');
  };

  const register = (registry: ServiceRegistry): void =>
    registry.register(DeviceLinkService, {
      sendRpc: async (request, context) => toRecord(await send(database, request, context)),

      getRpc: async (request, context) => {
        checkWait(request.waitSeconds);
        const { tenantId } = context;
        const visible = visibleTo(context, 'rpc:read');
        // As it is stored: the feed wakes those who wait under that name.
        const correlationId = storedId(request.correlationId);
        // Many calls may wait, and none of them keeps what the device was told.
        const { bytes } = await feed.until({
          key: correlationId,
          milliseconds: request.waitSeconds * 1000,
          signal: context.signal,
          look: () => database.read(tenantId, (tx) => getCommandState(tx, visible, correlationId)),
          found: ({ status }) => finishedStatuses.includes(status),
          next: ({ expires_at: end }) => Math.min(end.getTime() - clock.now(), maxLookIntervalMilliseconds),
        });
        return large.run(tenantId, bytes, smallBytes, async () =>
          toRecord(await database.read(tenantId, (tx) => getCommand(tx, visible, correlationId))),
        );
      },

      listRpcs: (request, context) => list(database, paging, request, context),

      cancelRpc: (request, context) =>
        database.tenant(context.tenantId, async (tx) => {
          const { correlationId } = request;
          const row = await getCommand(tx, visibleTo(context, 'rpc:write'), correlationId, 'FOR UPDATE').catch(
            (error: unknown) => refuseOf(tx, context, correlationId, error),
          );
          if (row.rollout_id !== null)
            throw failedPrecondition('the command belongs to a rollout: skip the device there');
          if (row.status === 'cancelled') return toRecord(row);
          if (finishedStatuses.includes(row.status)) throw alreadyEnded(row.status);
          return toRecord(await endCommand(tx, row, 'cancelled'));
        }),

      listPendingRpcs: async (request, context) => {
        checkWait(request.waitSeconds);
        const { tenantId, caller } = context;
        noteAlive(tenantId, caller.deviceId, request.deviceId);
        const { commands } = await feed.until({
          key: `${tenantId}/${request.deviceId}`,
          milliseconds: request.waitSeconds * 1000,
          signal: context.signal,
          look: async () => {
            // The child may have left the gateway since the call was admitted.
            await checkStillActsFor(database, caller, request.deviceId);
            return delivery.take(tenantId, request.deviceId);
          },
          found: (taken) => taken.commands.length > 0,
          next: (taken) => taken.nextMilliseconds,
          heldBy: (taken) => taken.heldBy.map((rolloutId) => `${tenantId}/${rolloutId}`),
          max: maxPolls,
        });
        return { commands: commands.map(toRecord) };
      },

      respondRpc: async (request, { tenantId, caller }) => {
        const row = await recordResponse(database, tenantId, caller.deviceId, request);
        noteAlive(tenantId, caller.deviceId, row.device_id);
        return toRecord(row);
      },
    });
  const start = async () => loops.forEach((loop) => loop.start());
  const stop = async () => void (await Promise.all(loops.map((loop) => loop.stop())));
  return { feed, delivery, register, start, stop };
}

/** Throws PERMISSION_DENIED unless the device is the caller itself or one of its children. */
async function checkStillActsFor(database: Database, { tenantId, deviceId }: Caller, named: string): Promise<void> {
  const child = named.toLowerCase();
  if (child === deviceId) return;
  const children = await database.read(tenantId, (tx) => childrenAmong(tx, tenantId, deviceId, [child]));
  if (!children.has(child)) throw permissionDenied('the device is not a child of this gateway any more');
}

function checkWait(seconds: number): void {
  if (seconds > maxWaitSeconds) throw invalidArgument(`wait_seconds must be from 0 to ${maxWaitSeconds}`);
}

async function send(database: Database, request: SendRpcRequest, context: CallContext): Promise<CommandRow> {
  methodField('method', request.method);
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
    // A command that was sent before has room.
    await checkRoom(tx, [context.tenantId, device.device_id], commandLimit, 1);
    const row = await getCommand(tx, visibleTo(context, 'rpc:write'), correlationId);
    if (!isSame(row, { ...request, params, lifetimeSeconds: request.expiresInSeconds || lifetime })) {
      throw failedPrecondition('the idempotency_key was used for another command');
    }
    return row;
  });
}

/** Throws PERMISSION_DENIED instead of the error that a command does not exist for a change, if the caller may read it. */
async function refuseOf(tx: Transaction, context: CallContext, correlationId: string, error: unknown): Promise<never> {
  if (!holdsInPart(context.caller, 'rpc:read')) throw error;
  await getCommand(tx, visibleTo(context, 'rpc:read'), correlationId);
  throw permissionDenied('the scope rpc:write is limited to device groups that the device of the command is not in');
}

/** The commands that the caller reaches with a scope. */
const visibleTo = (
  { tenantId, caller }: CallContext,
  scope: 'rpc:read' | 'rpc:write',
): Parameters<typeof getCommand>[1] => ({ tenantId, visibility: visibilityOf(caller, scope) });

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

async function list(
  database: Database,
  paging: Platform['paging'],
  request: ListRpcsRequest,
  context: CallContext,
): Promise<{ commands: MessageInitShape<typeof RpcRecordSchema>[]; nextPageToken: string }> {
  const { tenantId } = context;
  const status = enumFilter('status', RpcRecord_StatusSchema, request.status);
  const { items, nextPageToken } = await listSized({ database, paging }, request, {
    scope: [tenantId, 'commands by time', request.deviceId, status],
    smallPage,
    // The page token works even when the sweep has deleted the last command shown.
    cursorOf: (row: ListedCommand): CommandCursor => ({ time: row.time, id: row.correlation_id }),
    check: async (tx) => {
      if (!isId(request.deviceId) || !(await findDevice(tx, tenantId, request.deviceId))) throw notFound('device_id');
    },
    read: (tx, after, room) => listCommands(tx, tenantId, request.deviceId, status, after, room),
    toItem: toRecord,
  });
  return { commands: items, nextPageToken };
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

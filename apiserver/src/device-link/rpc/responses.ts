// Records the responses of devices to their commands.
import { isDeepStrictEqual } from 'node:util';
import type { JsonObject } from '@bufbuild/protobuf';
import { findDevice } from '../../device-registry/devices/devices.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { failedPrecondition, type KelletError, notFound, permissionDenied } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { freeJsonField } from '../../platform/requests/fields.ts';
import { type Visibility, wholeTenant } from '../../platform/visibility.ts';
import {
  type CommandRow,
  type CommandState,
  type CommandStatus,
  endCommand,
  findCommand,
  findCommandState,
  keptError,
} from '../commands/commands.ts';

const largestResponse = 1024 * 1024;

/** How a command can end. */
const endings: Partial<Record<CommandStatus, string>> = {
  successful: 'has succeeded',
  failure: 'has failed',
  expired: 'has expired',
  cancelled: 'was cancelled',
};

/** States of a command that has ended. */
export const finishedStatuses = Object.keys(endings) as readonly CommandStatus[];

/** The command has ended in another way than the caller wants. */
export const alreadyEnded = (status: CommandStatus): KelletError =>
  failedPrecondition(`the command ${endings[status]}`);

/** A device's response. */
export interface CommandResponse {
  readonly correlationId: string;
  readonly success: boolean;
  readonly response?: JsonObject | undefined;
  readonly error: string;
}

/**
 * Ends a command with the response of `deviceId`, which is its device or that device's gateway. The same response again is
 * accepted. Throws INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, or FAILED_PRECONDITION if the command has ended
 * otherwise.
 */
export async function recordResponse(
  database: Database,
  tenantId: string,
  deviceId: string,
  given: CommandResponse,
): Promise<CommandRow> {
  const response = given.response ?? {};
  freeJsonField('response', response, largestResponse);
  return database.tenant(tenantId, async (tx) => {
    // Locked, so that later ones of concurrent responses see the state after the first.
    const row = await getCommand(tx, { tenantId, visibility: wholeTenant }, given.correlationId, 'FOR UPDATE');
    if (!(await mayRespond(tx, row, deviceId))) throw permissionDenied('the command is not one to this device');
    const status = given.success ? 'successful' : 'failure';
    const error = keptError(given.error);
    if (row.status === status) {
      // The reply to the first one may have been lost. A report on an update ends a command without a response.
      if (!row.response || (row.error === error && isDeepStrictEqual(row.response, asStored(response)))) return row;
      throw failedPrecondition(`the command ${endings[status]} with another response`);
    }
    if (finishedStatuses.includes(row.status)) throw alreadyEnded(row.status);
    return endCommand(tx, row, status, response, error);
  });
}

/** Returns a response as it is read again: JSON has no negative zero. */
const asStored = (response: JsonObject): JsonObject => JSON.parse(JSON.stringify(response)) as JsonObject;

/** Returns the current state of a command to a device of the customer, if one is given. Throws NOT_FOUND. */
export async function getCommand(
  tx: Transaction,
  { tenantId, visibility }: { readonly tenantId: string; readonly visibility: Visibility },
  correlationId: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<CommandRow> {
  const row = isId(correlationId) ? await findCommand(tx, tenantId, correlationId, visibility, lock) : undefined;
  if (!row) throw notFound('correlation_id');
  return row;
}

/** Returns whether a command to a visible device has ended. Throws NOT_FOUND. */
export async function getCommandState(
  tx: Transaction,
  { tenantId, visibility }: Parameters<typeof getCommand>[1],
  correlationId: string,
): Promise<CommandState> {
  const state = isId(correlationId) ? await findCommandState(tx, tenantId, correlationId, visibility) : undefined;
  if (!state) throw notFound('correlation_id');
  return state;
}

/** Reports whether a device may respond to a command: its device, or that device's gateway. */
async function mayRespond(tx: Transaction, row: CommandRow, deviceId: string): Promise<boolean> {
  if (row.device_id === deviceId) return true;
  const device = await findDevice(tx, row.tenant_id, row.device_id);
  return device?.gateway_device_id === deviceId;
}

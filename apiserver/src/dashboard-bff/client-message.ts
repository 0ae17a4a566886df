// Parses messages of /ws clients. Pure.
import { invalidArgument } from '../platform/errors.ts';

/** The channels of the contract. */
const channels = ['telemetry.live', 'alarms', 'rollouts', 'events'] as const;

/** Devices that a message refers to: one, several, or those of a group. Empty if it names none. */
export interface Target {
  readonly deviceIds: readonly string[];
  readonly groupId: string | undefined;
}

/** A validated message. */
export type ClientMessage = {
  readonly verb: 'subscribe' | 'unsubscribe';
  /** The target as the client gave it, for the response. */
  readonly given: Readonly<Record<string, unknown>>;
} & (
  | { readonly channel: 'telemetry.live'; readonly target: Target }
  /** `rolloutId` is undefined if an unsubscription names none: it is for all. */
  | { readonly channel: 'rollouts'; readonly rolloutId: string | undefined }
  | { readonly channel: 'alarms' }
  | { readonly channel: 'events' }
);

const maxDevicesPerMessage = 1000;

/** Parses a message. Throws INVALID_ARGUMENT if it is malformed. */
export function parseClientMessage(text: string): ClientMessage {
  const message = jsonObject(text);
  const { subscribe, unsubscribe, ...given } = message;
  if ((subscribe === undefined) === (unsubscribe === undefined)) {
    throw invalidArgument('a message must have either subscribe or unsubscribe');
  }
  const verb = subscribe === undefined ? 'unsubscribe' : 'subscribe';
  const channel = channels.find((known) => known === (subscribe ?? unsubscribe));
  switch (channel) {
    case undefined:
      throw invalidArgument(`${verb}: must be one of ${channels.join(', ')}`);
    case 'telemetry.live':
      return { verb, channel, target: targetOf(given, verb), given };
    case 'rollouts':
      return { verb, channel, rolloutId: rolloutOf(given, verb), given };
    default:
      refuseFields(given);
      return { verb, channel, given };
  }
}

function jsonObject(text: string): Record<string, unknown> {
  let parsed: unknown;
  try {
    parsed = JSON.parse(text);
  } catch {
    throw invalidArgument('the message is not JSON');
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw invalidArgument('the message is not a JSON object');
  }
  return parsed as Record<string, unknown>;
}

function targetOf(given: Record<string, unknown>, verb: ClientMessage['verb']): Target {
  const { device_id: deviceId, device_ids: deviceIds, group_id: groupId, ...unknown } = given;
  refuseFields(unknown);
  const named = [deviceId, deviceIds, groupId].filter((field) => field !== undefined).length;
  if (named > 1 || (named === 0 && verb === 'subscribe')) {
    throw invalidArgument('name one of device_id, device_ids, group_id');
  }
  if (groupId !== undefined) return { deviceIds: [], groupId: id('group_id', groupId) };
  if (deviceId !== undefined) return { deviceIds: [id('device_id', deviceId)], groupId: undefined };
  if (deviceIds === undefined) return { deviceIds: [], groupId: undefined };
  if (!Array.isArray(deviceIds) || deviceIds.length === 0 || deviceIds.length > maxDevicesPerMessage) {
    throw invalidArgument(`device_ids: 1 to ${maxDevicesPerMessage} ids`);
  }
  return { deviceIds: deviceIds.map((one) => id('device_ids', one)), groupId: undefined };
}

function rolloutOf(given: Record<string, unknown>, verb: ClientMessage['verb']): string | undefined {
  const { rollout_id: rolloutId, ...unknown } = given;
  refuseFields(unknown);
  if (rolloutId === undefined && verb === 'unsubscribe') return undefined;
  return id('rollout_id', rolloutId);
}

function refuseFields(fields: Record<string, unknown>): void {
  const [extra] = Object.keys(fields);
  if (extra !== undefined) throw invalidArgument(`unknown field ${extra}`);
}

/** Returns an id as ids are stored: in lower case. Throws INVALID_ARGUMENT. */
function id(field: string, value: unknown): string {
  if (typeof value !== 'string' || value === '') throw invalidArgument(`${field} must be an id`);
  return value.toLowerCase();
}

// Decides which devices of a batch are evaluated in it, so that what is read of them takes bounded memory. Pure.
import type { DeviceFacts } from '../../policies/inheritance.ts';
import type { CompiledRule } from './compiled-rules.ts';

/** What a batch reads of its devices. A single device may exceed it. */
const batchRoom = {
  /** States, and open alarms, of a device and a rule. */
  states: 50_000,
  /** Bytes of last points. */
  lastPointBytes: 8 * 1024 * 1024,
} as const;

type Rule = { readonly row: Pick<CompiledRule['row'], 'profile_id'> };

/**
 * Returns the first of the devices for which there is room, at least one. Devices that no longer exist need none. A rule for
 * a device group counts for every device, because it is not known yet which are in the group.
 */
export function devicesOfBatch(
  deviceIds: readonly string[],
  devices: ReadonlyMap<string, Pick<DeviceFacts, 'profileId'>>,
  rules: readonly Rule[],
  lastPointBytes: ReadonlyMap<string, number>,
  room: { readonly states: number; readonly lastPointBytes: number } = batchRoom,
): string[] {
  const ofProfile = new Map<string, number>();
  let ofAll = 0;
  for (const { row } of rules) {
    if (row.profile_id === null) ofAll += 1;
    else ofProfile.set(row.profile_id, (ofProfile.get(row.profile_id) ?? 0) + 1);
  }
  let states = 0;
  let bytes = 0;
  const end = deviceIds.findIndex((deviceId, index) => {
    const device = devices.get(deviceId);
    if (!device) return false;
    states += ofAll + (ofProfile.get(device.profileId) ?? 0);
    bytes += lastPointBytes.get(deviceId) ?? 0;
    return index > 0 && (states > room.states || bytes > room.lastPointBytes);
  });
  return deviceIds.slice(0, end === -1 ? undefined : end);
}

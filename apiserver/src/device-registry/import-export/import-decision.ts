// Decides what an import does with a line.
import { isDeepStrictEqual } from 'node:util';
import { alreadyExists, invalidArgument, type KelletError, notFound } from '../../platform/errors.ts';
import type { DeviceLine } from './device-file.ts';

/** A device that exists, or that an earlier line creates. */
export interface KnownDevice {
  /** Empty if it does not exist yet. */
  readonly deviceId: string;
  readonly name: string;
  /** Empty if none. */
  readonly profileId: string;
  readonly tags: Readonly<Record<string, string>>;
  readonly metadata: unknown;
  readonly groupIds: readonly string[];
}

/** The outcome of a line. */
export type LineDecision =
  | { readonly action: 'create' }
  | { readonly action: 'unchanged'; readonly deviceId: string }
  | { readonly action: 'reject'; readonly error: KelletError };

/** Decides about a line whose references exist; `known` is the device with its hardware id, if there is one. */
export function decideLine(
  line: DeviceLine,
  profileId: string | undefined,
  known: KnownDevice | undefined,
): LineDecision {
  if (!known) return { action: 'create' };
  const different = differences(line, profileId, known);
  if (different.length === 0) return { action: 'unchanged', deviceId: known.deviceId };
  const hardwareId = JSON.stringify(line.hardwareId);
  return {
    action: 'reject',
    error: alreadyExists(
      `a device with hardware_id ${hardwareId} already exists, with other values of ${different.join(', ')}`,
    ),
  };
}

/** Returns the names of the fields in which a line differs from the device. */
function differences(line: DeviceLine, profileId: string | undefined, known: KnownDevice): string[] {
  const { name, tags, metadata, groupIds } = line;
  return [
    ...(name !== undefined && name !== known.name ? ['name'] : []),
    ...(profileId !== undefined && profileId !== known.profileId ? ['profile_id'] : []),
    ...(tags !== undefined && !isDeepStrictEqual({ ...tags }, { ...known.tags }) ? ['tags'] : []),
    // None and empty ones are the same, also in what an export says.
    ...(metadata !== undefined && !isDeepStrictEqual(metadata ?? {}, known.metadata ?? {}) ? ['metadata'] : []),
    ...(groupIds !== undefined && !isDeepStrictEqual([...groupIds].sort(), [...known.groupIds].sort())
      ? ['group_ids']
      : []),
  ];
}

/**
 * Returns the profile that a line names: empty if it says that there is none, undefined if it says nothing. Throws
 * NOT_FOUND, and INVALID_ARGUMENT if its id and name are of different profiles.
 */
export function profileOfLine(
  { profileId, profileName }: DeviceLine,
  profiles: ReadonlyMap<string, string>,
): string | undefined {
  const byId = profileId || undefined;
  const byName = profileName ? profiles.get(profileName) : undefined;
  if (profileName && byName === undefined) throw notFound(`profile_name: ${JSON.stringify(profileName)}`);
  if (byId !== undefined && byName !== undefined && byId !== byName) {
    throw invalidArgument('profile_id and profile_name are of different profiles');
  }
  if (byId ?? byName) return byId ?? byName;
  return profileId === undefined && profileName === undefined ? undefined : '';
}

// Validates the fields of entity views. Pure.
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { invalidArgument } from '../../platform/errors.ts';

const nanosecondsPerSecond = 1_000_000_000n;
/** PostgreSQL's int8, as for the times of points. */
const maximumNanoseconds = 2n ** 63n - 1n;
/** As many as a point may have, and as long. */
const maximumKeys = 256;
const maximumKeyBytes = 128;

/** Returns the keys without repetitions. Throws INVALID_ARGUMENT for keys that no point can have. */
export function keysField(keys: readonly string[]): string[] {
  if (keys.length > maximumKeys) throw invalidArgument(`keys must have at most ${maximumKeys} entries`);
  for (const key of keys) {
    const bytes = Buffer.byteLength(key);
    if (bytes === 0 || bytes > maximumKeyBytes) {
      throw invalidArgument(`keys: ${JSON.stringify(key)} must have 1 to ${maximumKeyBytes} bytes`);
    }
    if (key.includes('\0')) throw invalidArgument('keys must not contain NUL');
  }
  return [...new Set(keys)];
}

/** Returns a time in nanoseconds since 1970, null if it is unset. Throws INVALID_ARGUMENT beyond the times of points. */
export function timeField(name: string, time: Timestamp | undefined): bigint | null {
  if (time === undefined) return null;
  const nanoseconds = time.seconds * nanosecondsPerSecond + BigInt(time.nanos);
  if (nanoseconds < 0n || nanoseconds > maximumNanoseconds) {
    throw invalidArgument(`${name} must be from 1970 to 2262`);
  }
  return nanoseconds;
}

/** Throws INVALID_ARGUMENT for a window that is empty. */
export function checkWindow(start: bigint | null, end: bigint | null): void {
  if (start !== null && end !== null && start >= end) throw invalidArgument('end_time must be after start_time');
}

/** Converts nanoseconds since 1970 to a message field. */
export const timestampOf = (nanoseconds: bigint | null): { seconds: bigint; nanos: number } | undefined =>
  nanoseconds === null
    ? undefined
    : { seconds: nanoseconds / nanosecondsPerSecond, nanos: Number(nanoseconds % nanosecondsPerSecond) };

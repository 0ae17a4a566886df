// Reads RFC 3339 from bytes: UTC directly, everything else as parseTimestamp does.
import { type DeviceTime, parseTimestamp } from '../points/timestamp.ts';

const date = new Uint8Array(10);
let dateSeconds = NaN;

/** Returns the time between two positions, or undefined if it is not RFC 3339. */
export function readTime(bytes: Buffer, start: number, end: number): DeviceTime | undefined {
  return readUtc(bytes, start, end) ?? parseTimestamp(bytes.toString('latin1', start, end));
}

/** Returns a time of the form 2026-01-31T12:00:00.123Z, or undefined. */
function readUtc(bytes: Uint8Array, start: number, end: number): DeviceTime | undefined {
  const length = end - start;
  if (length < 20 || length > 30 || bytes[end - 1] !== 0x5a) return undefined;
  if (bytes[start + 10] !== 0x54 || bytes[start + 13] !== 0x3a || bytes[start + 16] !== 0x3a) return undefined;
  const hour = twoDigits(bytes, start + 11);
  const minute = twoDigits(bytes, start + 14);
  const second = twoDigits(bytes, start + 17);
  // A byte that is no digit is NaN, for which every comparison is false.
  if (!(hour <= 23 && minute <= 59 && second <= 59)) return undefined;
  let nanoseconds = 0;
  if (length > 20) {
    if (length === 21 || bytes[start + 19] !== 0x2e) return undefined;
    let unit = 1e8;
    for (let at = start + 20; at < end - 1; at += 1, unit /= 10) nanoseconds += digit(bytes, at) * unit;
    if (!(nanoseconds >= 0)) return undefined;
  }
  if (!isSameDate(bytes, start)) {
    const midnight = parseTimestamp(`${String.fromCharCode(...bytes.subarray(start, start + 10))}T00:00:00Z`);
    if (!midnight) return undefined;
    date.set(bytes.subarray(start, start + 10));
    dateSeconds = midnight.seconds;
  }
  return { seconds: dateSeconds + hour * 3600 + minute * 60 + second, nanoseconds };
}

/** Reports whether the date at a position is the one read last: the points of a request are mostly of one day. */
function isSameDate(bytes: Uint8Array, start: number): boolean {
  for (let index = 9; index >= 0; index -= 1) if (bytes[start + index] !== date[index]) return false;
  return true;
}

const digit = (bytes: Uint8Array, at: number): number => {
  const value = bytes[at]! - 0x30;
  return value >= 0 && value <= 9 ? value : NaN;
};
const twoDigits = (bytes: Uint8Array, at: number): number => digit(bytes, at) * 10 + digit(bytes, at + 1);

// Converts device time between RFC 3339 text and seconds and nanoseconds since 1970.

/** A point in time: whole seconds since 1970 and nanoseconds within that second. */
export interface DeviceTime {
  readonly seconds: number;
  readonly nanoseconds: number;
}

const digit = (text: string, at: number): number => {
  const value = text.charCodeAt(at) - 48;
  return value >= 0 && value <= 9 ? value : NaN;
};
const twoDigits = (text: string, at: number): number => digit(text, at) * 10 + digit(text, at + 1);

const daysInMonth = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

function monthLength(year: number, month: number): number {
  const leap = year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
  return month === 2 && leap ? 29 : daysInMonth[month - 1]!;
}

/** Returns the days from 1970-01-01 to a date of the proleptic Gregorian calendar. */
function daysSinceEpoch(year: number, month: number, day: number): number {
  // Years start in March so that the leap day comes last.
  const marchYear = month > 2 ? year : year - 1;
  const dayOfYear = Math.floor((153 * (month + (month > 2 ? -3 : 9)) + 2) / 5) + day - 1;
  return (
    365 * marchYear +
    Math.floor(marchYear / 4) -
    Math.floor(marchYear / 100) +
    Math.floor(marchYear / 400) +
    dayOfYear -
    719468
  );
}

/**
 * Parses RFC 3339 (any offset, at most nine fractional digits, no leap seconds). Returns undefined for any other text.
 * Times before 1970 have negative seconds.
 */
export function parseTimestamp(text: string): DeviceTime | undefined {
  if (text.length < 20 || text.length > 35) return undefined;
  const year = twoDigits(text, 0) * 100 + twoDigits(text, 2);
  const month = twoDigits(text, 5);
  const day = twoDigits(text, 8);
  const hour = twoDigits(text, 11);
  const minute = twoDigits(text, 14);
  const second = twoDigits(text, 17);
  // A non-digit is NaN, for which every comparison is false.
  const inRange =
    year >= 0 && month >= 1 && month <= 12 && day >= 1 && hour <= 23 && minute <= 59 && second <= 59 && hour >= 0;
  if (!inRange || !(minute >= 0) || !(second >= 0) || day > monthLength(year, month)) return undefined;
  if (text[4] !== '-' || text[7] !== '-' || text[13] !== ':' || text[16] !== ':') return undefined;
  if (text[10] !== 'T' && text[10] !== 't') return undefined;
  let at = 19;
  let nanoseconds = 0;
  if (text[at] === '.') {
    let unit = 1e8;
    for (at += 1; digit(text, at) >= 0; at += 1, unit /= 10) {
      if (unit < 1) return undefined;
      nanoseconds += digit(text, at) * unit;
    }
    if (at === 20) return undefined;
  }
  const offset = offsetSeconds(text, at);
  if (offset === undefined) return undefined;
  const seconds = daysSinceEpoch(year, month, day) * 86400 + hour * 3600 + minute * 60 + second - offset;
  return { seconds, nanoseconds };
}

function offsetSeconds(text: string, at: number): number | undefined {
  const sign = text[at];
  if (sign === 'Z' || sign === 'z') return text.length === at + 1 ? 0 : undefined;
  if ((sign !== '+' && sign !== '-') || text.length !== at + 6 || text[at + 3] !== ':') return undefined;
  const hours = twoDigits(text, at + 1);
  const minutes = twoDigits(text, at + 4);
  if (!(hours <= 23) || !(minutes <= 59)) return undefined;
  return (hours * 3600 + minutes * 60) * (sign === '-' ? -1 : 1);
}

/** Returns nanoseconds since 1970, as stored in the database. */
export function toNanoseconds(time: DeviceTime): bigint {
  return BigInt(time.seconds) * 1_000_000_000n + BigInt(time.nanoseconds);
}

/** Formats nanoseconds since 1970 as RFC 3339 in UTC, with 0, 3, 6 or 9 fractional digits as needed. */
export function formatNanoseconds(nanoseconds: bigint): string {
  const seconds = new Date(Number(nanoseconds / 1_000_000_000n) * 1000).toISOString().slice(0, 19);
  const fraction = String(nanoseconds % 1_000_000_000n).padStart(9, '0');
  if (fraction === '000000000') return `${seconds}Z`;
  return `${seconds}.${fraction.replace(/(?:000){1,2}$/, '')}Z`;
}

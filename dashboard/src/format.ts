// Formats values for display. Pure: the current time is passed in.

const second = 1000;
const minute = 60 * second;
const hour = 60 * minute;
const day = 24 * hour;

/** Returns how long ago a time was, such as `5 min ago`, or `never` for none. */
export function age(time: string | undefined, now: number): string {
  const milliseconds = now - Date.parse(time ?? '');
  if (Number.isNaN(milliseconds)) return 'never';
  if (milliseconds < 5 * second) return 'just now';
  if (milliseconds < minute) return `${Math.floor(milliseconds / second)} s ago`;
  if (milliseconds < hour) return `${Math.floor(milliseconds / minute)} min ago`;
  if (milliseconds < 2 * day) return `${Math.floor(milliseconds / hour)} h ago`;
  return `${Math.floor(milliseconds / day)} days ago`;
}

/** Returns a duration, such as `90 s`, `15 min` or `2 h 5 min`. */
export function duration(seconds: number): string {
  if (seconds < 120) return `${seconds} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} days`;
  return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
}

/** Returns a time in the reader's time zone, or a dash. */
export function dateTime(time: string | undefined, locale?: string, timeZone?: string): string {
  const milliseconds = Date.parse(time ?? '');
  if (Number.isNaN(milliseconds)) return '–';
  const format: Intl.DateTimeFormatOptions = {
    dateStyle: 'medium',
    timeStyle: 'medium',
    ...(timeZone && { timeZone }),
  };
  return new Intl.DateTimeFormat(locale, format).format(milliseconds);
}

/** Returns a whole number with separators of thousands. */
export const count = (value: number, locale?: string): string => new Intl.NumberFormat(locale).format(value);

/** Returns a measured value with at most six significant digits. */
export function measure(value: number, locale?: string): string {
  return new Intl.NumberFormat(locale, { maximumSignificantDigits: 6 }).format(value);
}

/** Returns a percentage with at most one decimal. */
export function percent(value: number, locale?: string): string {
  return `${new Intl.NumberFormat(locale, { maximumFractionDigits: 1 }).format(value)} %`;
}

/** Returns the ends of a long id or hash. */
export const short = (id: string): string => (id.length <= 18 ? id : `${id.slice(0, 8)}…${id.slice(-6)}`);

/** Returns a name of the contract with spaces: `rolling_back` becomes `rolling back`. */
export const words = (name: string | undefined): string => (name ?? 'unknown').replaceAll('_', ' ');

/** Returns a value of JSON as text for a table. */
export const plain = (value: unknown): string => (typeof value === 'string' ? value : (JSON.stringify(value) ?? ''));

// Human-readable durations, ages and sizes, formatted like kubectl.

/** Formats a duration like `45s`, `3m20s`, `5h` or `12d`, with at most two significant units. */
export function formatDuration(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) return seconds % 60 === 0 ? `${minutes}m` : `${minutes}m${seconds % 60}s`;
  if (minutes < 180) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 8) return minutes % 60 === 0 ? `${hours}h` : `${hours}h${minutes % 60}m`;
  if (hours < 48) return `${hours}h`;
  return `${Math.floor(hours / 24)}d`;
}

/** Formats the age of an RFC 3339 time, or `<unknown>` without one. */
export function formatAge(time: string | undefined, now: number): string {
  const at = Date.parse(time ?? '');
  return Number.isNaN(at) ? '<unknown>' : formatDuration(now - at);
}

/** Formats a size in the largest unit for which it is at least one. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

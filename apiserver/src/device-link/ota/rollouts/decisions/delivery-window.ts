// The daily windows in which commands are delivered. Pure.
import type { Window } from '@kellet/proto/es/kellet/v1/common_pb';
import { LRUCache } from 'lru-cache';

const dayNames = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];
const minute = 60_000;
const day = 1440 * minute;
const week = 7 * day;

/**
 * Reports whether a moment lies in a daily window, in the window's time zone. A window whose start is after its end crosses
 * midnight and belongs to the day on which it starts; equal start and end cover the whole day.
 */
export function insideWindow(window: Window, now: Date): boolean {
  const { day, minutes } = localTime(now, window.timeZone || 'UTC');
  const start = minutesOf(window.start);
  const end = minutesOf(window.end);
  const open = (startDay: number) => window.days.length === 0 || window.days.includes(dayNames[(startDay + 7) % 7]!);
  if (start < end) return minutes >= start && minutes < end && open(day);
  return (minutes >= start && open(day)) || (minutes < end && open(day - 1));
}

/** Returns when a window next opens or closes after a moment, or undefined if it never does. Exact but for changes of clocks. */
export const nextChange = (window: Window, now: Date): Date | undefined =>
  // A window of one day may lie in the hour that the clocks skip: then it opens a week later.
  changeWithin(8, window, now) ?? changeWithin(15, window, now);

function changeWithin(days: number, window: Window, now: Date): Date | undefined {
  const isOpen = insideWindow(window, now);
  const zone = window.timeZone || 'UTC';
  const from = Math.floor(now.getTime() / minute) * minute;
  const { minutes } = localTime(now, zone);
  const edges = [window.start, window.end].flatMap((edge) => {
    const wait = (minutesOf(edge) - minutes + 1440) % 1440;
    return Array.from({ length: days + 1 }, (_, index) => {
      const at = from + wait * minute + index * day;
      // The clocks may have changed in between.
      const late = localTime(new Date(at), zone).minutes - minutesOf(edge);
      return late === 0 ? [at] : [at - (((late + 2160) % 1440) - 720) * minute, at];
    }).flat();
  });
  const change = edges.sort((a, b) => a - b).find((at) => at > from && insideWindow(window, new Date(at)) !== isOpen);
  return change === undefined ? undefined : new Date(change);
}

/** Returns when a window is open at a moment or after it; undefined: without a window. */
export const openFrom = (window: Window | undefined, at: Date): Date =>
  !window || insideWindow(window, at) ? at : (nextChange(window, at) ?? at);

/** Returns when a window has been open for so many milliseconds after a moment. */
export function afterOpen(window: Window | undefined, from: Date, milliseconds: number): Date {
  if (!window || !nextChange(window, from)) return new Date(from.getTime() + milliseconds);
  let at = from.getTime();
  let left = milliseconds;
  // Whole weeks at once: a slow rollout takes thousands of windows.
  const weeks = Math.max(0, Math.floor(left / openWithin(window, at, week)) - 1);
  at += weeks * week;
  left -= weeks * openWithin(window, from.getTime(), week);
  for (;;) {
    const opens = openFrom(window, new Date(at));
    const closes = nextChange(window, opens)!.getTime();
    if (left <= closes - opens.getTime()) return new Date(opens.getTime() + left);
    left -= closes - opens.getTime();
    at = closes;
  }
}

/** Returns how long a window is open within so many milliseconds after a moment. */
function openWithin(window: Window, from: number, milliseconds: number): number {
  const end = from + milliseconds;
  let open = 0;
  for (let at = from; at < end;) {
    const next = Math.min(end, nextChange(window, new Date(at))!.getTime());
    if (insideWindow(window, new Date(at))) open += next - at;
    at = next;
  }
  return open;
}

function minutesOf(text: string): number {
  const [hours = '0', minutes = '0'] = text.split(':');
  return Number(hours) * 60 + Number(minutes);
}

/** Formats, which are costly to make, by time zone. Each takes 27 KiB, and a time zone has countless spellings: capitals do not matter. */
const formats = new LRUCache<string, Intl.DateTimeFormat>({ max: 500 });

function localTime(now: Date, timeZone: string): { day: number; minutes: number } {
  let format = formats.get(timeZone);
  if (!format) {
    const parts = { weekday: 'short', hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const;
    format = new Intl.DateTimeFormat('en-US', { timeZone, ...parts });
    formats.set(timeZone, format);
  }
  const parts = format.formatToParts(now);
  const part = (type: string) => parts.find((candidate) => candidate.type === type)!.value;
  return {
    day: dayNames.indexOf(part('weekday').toLowerCase()),
    minutes: Number(part('hour')) * 60 + Number(part('minute')),
  };
}

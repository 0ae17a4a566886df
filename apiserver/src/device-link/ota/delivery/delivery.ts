// Decides which commands of a rollout may be delivered now. Pure.
import type { Window } from '@kellet/proto/es/kellet/v1/common_pb';

/**
 * Reports whether commands of a rollout may be delivered or redelivered: not while it is paused or outside its window. Commands of
 * a rollback are never held and outlast it, so that a device that returns later still gets its command.
 */
export function mayDeliver(
  rollout: { phase: string; outcome: string; window: Window | undefined },
  now: Date,
): boolean {
  if (rollout.phase === 'rolling_back' || rollout.outcome === 'rolled_back') return true;
  if (rollout.phase !== 'active') return false;
  return !rollout.window || insideWindow(rollout.window, now);
}

/**
 * Decides what to do with a due command: `deliver`; `hold` if the device has reported progress since the delivery and so has the
 * command; `withdraw` if the device is no longer in the rollout or has a newer command, or if the rollout is rolling back and the
 * command is still one of the update.
 */
export function judgeCommand(
  command: { correlation_id: string; status: string },
  device: { correlation_id: string; state: string; rolling_back: boolean } | undefined,
  isRollingBack: boolean,
): 'deliver' | 'hold' | 'withdraw' {
  if (device?.correlation_id !== command.correlation_id) return 'withdraw';
  if (isRollingBack && !device.rolling_back) return 'withdraw';
  return command.status === 'sent' && device.state === 'downloading' ? 'hold' : 'deliver';
}

const dayNames = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];

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

function minutesOf(text: string): number {
  const [hours = '0', minutes = '0'] = text.split(':');
  return Number(hours) * 60 + Number(minutes);
}

function localTime(now: Date, timeZone: string): { day: number; minutes: number } {
  const parts = new Intl.DateTimeFormat('en-US', {
    timeZone,
    weekday: 'short',
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23',
  }).formatToParts(now);
  const part = (type: string) => parts.find((candidate) => candidate.type === type)!.value;
  return {
    day: dayNames.indexOf(part('weekday').toLowerCase()),
    minutes: Number(part('hour')) * 60 + Number(part('minute')),
  };
}

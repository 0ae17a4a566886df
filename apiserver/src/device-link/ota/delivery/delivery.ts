// Which commands of a rollout may be handed out now.
import type { Window as ControlWindow } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { Window as PublicWindow } from '@kellet/proto/es/kellet/v1/common_pb';

type Window = ControlWindow | PublicWindow;

/**
 * Whether a rollout lets its commands out, for the first time or again: not while it is paused, not outside its window. The
 * commands of a rollback are never held, and outlast it: a device that comes back later still gets its own.
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
 * What becomes of a rollout's command that may be handed out: `deliver`; `hold`, when the device has reported progress since
 * the hand-out and so has the command; `withdraw`, when the device is no longer in the rollout or has a newer command.
 */
export function judgeCommand(
  command: { correlation_id: string; status: string },
  device: { correlation_id: string; state: string } | undefined,
): 'deliver' | 'hold' | 'withdraw' {
  if (device?.correlation_id !== command.correlation_id) return 'withdraw';
  return command.status === 'sent' && device.state === 'downloading' ? 'hold' : 'deliver';
}

const dayNames = ['sun', 'mon', 'tue', 'wed', 'thu', 'fri', 'sat'];

/**
 * Whether a moment lies in a daily window, in the window's time zone. A start after the end crosses midnight and belongs to the
 * day on which it starts; equal start and end cover the whole day.
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

// Decides which commands of a rollout may be delivered now. Pure.
import type { Window } from '@kellet/proto/es/kellet/v1/common_pb';
import { insideWindow } from '../rollouts/decisions/delivery-window.ts';

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

// The message of a point on telemetry.live, made once for all its subscribers.
import { livePointJson } from '../telemetry/live.ts';
import type { AcceptedPoint } from '../telemetry/validate.ts';

const messages = new WeakMap<AcceptedPoint, string>();

/** `{"channel":"telemetry.live","device_id":…,"point":{…}}` */
export function liveMessage(point: AcceptedPoint): string {
  let message = messages.get(point);
  if (message === undefined) {
    message = `{"channel":"telemetry.live","device_id":"${point.device.deviceId}","point":${livePointJson(point)}}`;
    messages.set(point, message);
  }
  return message;
}

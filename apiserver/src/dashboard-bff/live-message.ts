// Messages of telemetry.live, built once for all subscribers of a device.
import { textFrame } from './text-frame.ts';

const made = new WeakMap<readonly string[], readonly Buffer[]>();

/**
 * Returns `{"channel":"telemetry.live","device_id":…,"point":{…}}` for each point (the JSON of a LivePoint), as frames.
 */
export function liveMessages(deviceId: string, points: readonly string[]): readonly Buffer[] {
  let messages = made.get(points);
  if (!messages) {
    messages = points.map((point) =>
      textFrame(`{"channel":"telemetry.live","device_id":"${deviceId}","point":${point}}`),
    );
    made.set(points, messages);
  }
  return messages;
}

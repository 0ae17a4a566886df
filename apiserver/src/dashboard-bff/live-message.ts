// Messages of telemetry.live, built once for all subscribers of a device.

const made = new WeakMap<readonly string[], readonly string[]>();

/** Returns `{"channel":"telemetry.live","device_id":…,"point":{…}}` for each point (the JSON of a LivePoint). */
export function liveMessages(deviceId: string, points: readonly string[]): readonly string[] {
  let messages = made.get(points);
  if (!messages) {
    messages = points.map((point) => `{"channel":"telemetry.live","device_id":"${deviceId}","point":${point}}`);
    made.set(points, messages);
  }
  return messages;
}

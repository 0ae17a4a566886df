#!/usr/bin/env bash
# Watches a device over the WebSocket: points arrive as the device sends them.
. "$(dirname "$0")/common.sh"
sign_in
claim_device

KELLET_URL=$KELLET_URL TOKEN=$TOKEN DEVICE_ID=$DEVICE_ID DEVICE_KEY=$DEVICE_KEY node --input-type=module -e '
const { KELLET_URL, TOKEN, DEVICE_ID, DEVICE_KEY } = process.env;
const socket = new WebSocket(`${KELLET_URL.replace("http", "ws")}/ws?token=${TOKEN}`);
socket.onopen = () => socket.send(JSON.stringify({ subscribe: "telemetry.live", device_id: DEVICE_ID }));
socket.onmessage = async ({ data }) => {
  console.log(data);
  const message = JSON.parse(data);
  if (message.channel === "telemetry.live") return socket.close();
  const point = { device_id: DEVICE_ID, timestamp: new Date().toISOString(), numeric_values: { temperature: 4.5 } };
  await fetch(`${KELLET_URL}/api/v1/telemetry`, {
    method: "POST",
    headers: { authorization: `Bearer ${DEVICE_KEY}`, "content-type": "application/json" },
    body: JSON.stringify({ points: [point] }),
  });
};
setTimeout(() => process.exit(1), 20_000).unref();
'

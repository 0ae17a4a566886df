#!/usr/bin/env bash
# A device on MQTT (examples/mqtt/device.ts) sends a point, downloads the update that is assigned to it, and carries out two
# commands: the start of the update, and one of ours. Needs this checkout.
. "$(dirname "$0")/common.sh"
: "${KELLET_MQTT:=$(of_stack mqtt)}"
sign_in
claim_device

file=$(mktemp)
trap 'rm -f "$file"' EXIT
head -c 200000 /dev/urandom > "$file"
api POST ota/packages '{
  "type": "fw",
  "version": "1.2.0",
  "name": "mqtt-'"$RUN"'",
  "artifact_uri": "upload://",
  "sha256": "'"$(sha256sum "$file" | cut -d ' ' -f 1)"'",
  "size_bytes": 200000
}'
package_id=$(field package_id)
curl --silent --show-error --fail-with-body --upload-file "$file" --header "authorization: Bearer $TOKEN" \
  "$KELLET_URL/api/v1/ota/packages/$package_id/artifact"; echo
api PUT "devices/$DEVICE_ID/ota/assignment" "{\"package_id\":\"$package_id\"}"

KELLET_MQTT=$KELLET_MQTT DEVICE_ID=$DEVICE_ID DEVICE_KEY=$DEVICE_KEY node "$root/examples/mqtt/device.ts" 2 &
device=$!
api POST "devices/$DEVICE_ID/rpc" '{"method":"blink","persistent":true}'
correlation_id=$(field correlation_id)
api GET "devices/rpc/$correlation_id?wait_seconds=20"
wait $device

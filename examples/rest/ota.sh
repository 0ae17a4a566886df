#!/usr/bin/env bash
# Updates a fleet of one device: package, rollout, download in chunks, report.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

# A package with an uploaded artifact. With an https or s3 artifact_uri the artifact is fetched instead.
file=$(mktemp)
trap 'rm -f "$file"' EXIT
head -c 100000 /dev/urandom > "$file"
api POST ota/packages '{
  "type": "fw",
  "version": "1.2.0",
  "name": "example-'"$RUN"'",
  "artifact_uri": "upload://",
  "sha256": "'"$(sha256sum "$file" | cut -d ' ' -f 1)"'",
  "size_bytes": 100000
}'
package_id=$(field package_id)
curl --silent --show-error --fail-with-body --upload-file "$file" --header "authorization: Bearer $TOKEN" \
  "$KELLET_URL/api/v1/ota/packages/$package_id/artifact"; echo

rollout='"package_id":"'"$package_id"'","target_profile_id":"'"$PROFILE_ID"'","canary_percent":100'
api POST ota/rollouts/plan "{$rollout}"
api POST ota/rollouts "{$rollout}"
rollout_id=$(field rollout_id)
api POST "ota/rollouts/$rollout_id/pause"
api POST "ota/rollouts/$rollout_id/resume"

# As the device: get the command, download (at most 64 KiB at a time, as base64 in JSON or raw), and report.
TOKEN=$DEVICE_KEY
api GET "devices/$DEVICE_ID/ota"
api GET "devices/$DEVICE_ID/ota/chunk?package_id=$package_id&offset=0" | cut -c 1-200
curl --silent --show-error --fail --output /dev/null --dump-header - --header "authorization: Bearer $TOKEN" \
  --header 'accept: application/octet-stream' --header 'range: bytes=65536-' \
  "$KELLET_URL/api/v1/devices/$DEVICE_ID/ota/chunk?package_id=$package_id"
api POST "devices/$DEVICE_ID/ota/report" '{
  "device_id": "'"$DEVICE_ID"'",
  "rollout_id": "'"$rollout_id"'",
  "firmware_version": "1.2.0",
  "status": "success"
}'

TOKEN=$user_token
api GET "ota/rollouts/$rollout_id/devices"
until api GET "ota/rollouts/$rollout_id" | grep '"status":"completed"'; do sleep 1; done

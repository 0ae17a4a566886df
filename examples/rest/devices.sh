#!/usr/bin/env bash
# Creates devices, finds them by tag, groups them, and rotates a key.
. "$(dirname "$0")/common.sh"
sign_in

api POST devices '{"hardware_id":"hand-'"$RUN"'","name":"Roof","tags":{"run":"'"$RUN"'"}}'
device_id=$(field device_id)
api POST device-groups "{\"name\":\"roofs-$RUN\"}"
group_id=$(field group_id)

api POST "device-groups/$group_id/devices" "{\"device_ids\":[\"$device_id\"]}"
api GET "devices?tag=run=$RUN&group_id=$group_id"
api PATCH "devices/$device_id" '{"name":"Roof, north"}'
api POST "devices/$device_id/credentials/rotate" '{"grace_seconds":60}'
api GET "devices/$device_id/history"
api DELETE "devices/$device_id"

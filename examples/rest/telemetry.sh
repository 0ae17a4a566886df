#!/usr/bin/env bash
# Sends points with a device's key; reads latest values and history.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

TOKEN=$DEVICE_KEY
now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
api POST telemetry '{"points":[{
  "device_id": "'"$DEVICE_ID"'",
  "timestamp": "'"$now"'",
  "numeric_values": {"temperature": 4.5},
  "string_values": {"state": "calm"}
}]}'

TOKEN=$user_token
api GET "telemetry/$DEVICE_ID/latest"
api GET "telemetry/$DEVICE_ID?start=2026-01-01T00:00:00Z&keys=temperature&order=desc&page_size=10"
api GET "telemetry/metrics?device_id=$DEVICE_ID"

#!/usr/bin/env bash
# A device as a gateway: connects a child, sends its telemetry, takes its commands, and disconnects it.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN
gateway_id=$DEVICE_ID

TOKEN=$DEVICE_KEY
api POST "gateway/$gateway_id/connect" "{\"device_name\":\"Sensor\",\"hardware_id\":\"sensor-$RUN\"}"
child_id=$(field device_id)
api POST telemetry "{\"points\":[{\"device_id\":\"$child_id\",\"timestamp\":\"$(date -u +%FT%TZ)\",\"numeric_values\":{\"temperature\":21.5}}]}"

TOKEN=$user_token
api POST "devices/$child_id/rpc" '{"method":"calibrate","persistent":true}'
correlation_id=$(field correlation_id)

TOKEN=$DEVICE_KEY
api GET "devices/$child_id/rpc/pending?wait_seconds=10"
api POST "devices/rpc/$correlation_id/response" '{"success":true}'
api POST "gateway/$gateway_id/disconnect" "{\"device_id\":\"$child_id\"}"

#!/usr/bin/env bash
# Sends a command to a device, which fetches it and responds.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

api POST "devices/$DEVICE_ID/rpc" '{"method":"set_interval","params":{"seconds":30},"persistent":true}'
correlation_id=$(field correlation_id)

TOKEN=$DEVICE_KEY
api GET "devices/$DEVICE_ID/rpc/pending?wait_seconds=10"
api POST "devices/rpc/$correlation_id/response" '{"success":true,"response":{"seconds":30}}'

TOKEN=$user_token
api GET "devices/rpc/$correlation_id?wait_seconds=10"
api GET "devices/$DEVICE_ID/rpc"

#!/usr/bin/env bash
# Sends a command to a device that is connected by a gRPC stream (examples/grpc/connect.ts). Needs this checkout.
. "$(dirname "$0")/common.sh"
: "${KELLET_GRPC:=$(of_stack grpc)}"
sign_in
claim_device

KELLET_GRPC=$KELLET_GRPC DEVICE_KEY=$DEVICE_KEY node "$root/examples/grpc/connect.ts" 1 &
device=$!
api POST "devices/$DEVICE_ID/rpc" '{"method":"blink","persistent":true}'
correlation_id=$(field correlation_id)
api GET "devices/rpc/$correlation_id?wait_seconds=20"
wait $device

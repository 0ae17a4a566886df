#!/usr/bin/env bash
# Sets attributes; the device reads them, reports its own and is notified of changes.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

api PATCH "devices/$DEVICE_ID/attributes" '{"shared":{"interval":60},"server":{"contract":"A-17"}}'

TOKEN=$DEVICE_KEY
api GET "devices/$DEVICE_ID/attributes"
api PATCH "devices/$DEVICE_ID/attributes" '{"client":{"board":"rev-c","signal":-70}}'
api GET "devices/$DEVICE_ID/rpc/pending?wait_seconds=10"

TOKEN=$user_token
api PATCH "devices/$DEVICE_ID/attributes" '{"shared":{"interval":null}}'

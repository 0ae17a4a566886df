#!/usr/bin/env bash
# Creates a template with a provision key; a device claims its identity with it and gets its own API key.
. "$(dirname "$0")/common.sh"
sign_in

api POST profiles "{\"name\":\"claims-$RUN\",\"type\":\"sensor\"}"
profile_id=$(field profile_id)
api POST provisioning/templates '{
  "name": "claims-'"$RUN"'",
  "profile_id": "'"$profile_id"'",
  "hardware_id_pattern": "ws-*",
  "expires_in_seconds": 3600
}'
template_id=$(field template_id)
provision_key=$(field provision_key)

# As the device: no Authorization header, because the key is in the body. The API key is shown only this once.
TOKEN=
claim='{"provision_key":"'"$provision_key"'","device_name":"Pier 4","hardware_id":"ws-'"$RUN"'"}'
api POST provision "$claim"
# Repeating the claim returns the same device with an empty api_key.
api POST provision "$claim"

sign_in
api POST "provisioning/templates/$template_id/disable"

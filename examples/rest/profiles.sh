#!/usr/bin/env bash
# Creates a profile: the common settings of one kind of device.
. "$(dirname "$0")/common.sh"
sign_in

api POST profiles '{
  "name": "weather-station-'"$RUN"'",
  "type": "weather-station",
  "default_tags": {"site": "harbour"},
  "anchoring_policy": {"mode": "merkle"},
  "telemetry_schema": {"keys": {"temperature": {"type": "number", "required": true, "min": -40, "max": 85}}}
}'
profile_id=$(field profile_id)

api PATCH "profiles/$profile_id" '{"default_tags": {"site": "pier"}}'
api GET "profiles/$profile_id"
api GET 'profiles?page_size=2'
api DELETE "profiles/$profile_id"

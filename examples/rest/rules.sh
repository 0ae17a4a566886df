#!/usr/bin/env bash
# Writes a rule, tries its expression, raises an alarm, acknowledges it, and lets the rule clear it.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

api POST rules/validate '{"expression":"numeric.temperature >"}'
api POST rules/test "{\"expression\":\"numeric.temperature > 30\",
  \"point\":{\"device_id\":\"$DEVICE_ID\",\"timestamp\":\"2026-01-31T12:00:00Z\",\"numeric_values\":{\"temperature\":31.5}}}"
api POST rules "{\"name\":\"too hot $RUN\",\"expression\":\"numeric.temperature > 30\",\"profile_id\":\"$PROFILE_ID\",
  \"severity\":\"major\",\"alarm_type\":\"overheat\",\"clear_expression\":\"numeric.temperature < 25\",\"cooldown_seconds\":300,
  \"actions\":[{\"rpc\":{\"method\":\"fan_on\",\"params\":{\"level\":3}}}]}"
rule_id=$(field rule_id)

# send TEMPERATURE: sends a point of now.
send() {
  TOKEN=$DEVICE_KEY
  api POST telemetry "{\"points\":[{\"device_id\":\"$DEVICE_ID\",\"timestamp\":\"$(date -u +%FT%T.%NZ)\",
    \"numeric_values\":{\"temperature\":$1}}]}"
  TOKEN=$user_token
}

# until_alarm PATTERN: waits until the rule's alarm matches.
until_alarm() {
  for _ in $(seq 40); do
    api GET "alarms?rule_id=$rule_id"
    if grep -q "$1" <<< "$RESPONSE"; then return; fi
    sleep 0.25
  done
  exit 1
}

send 31.5
until_alarm '"status":"active"'
api POST "alarms/$(field alarm_id)/acknowledge"
send 20
until_alarm '"status":"cleared"'

api GET "rules/$rule_id"
api GET "devices/$DEVICE_ID/rpc"
api DELETE "rules/$rule_id"

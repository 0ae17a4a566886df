#!/usr/bin/env bash
# Gives a customer an asset, a device and a window on another device, and reads what the customer's user sees.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
admin_token=$TOKEN

TOKEN=$DEVICE_KEY
api POST telemetry '{"points":[{
  "device_id": "'"$DEVICE_ID"'",
  "timestamp": "'"$(date -u +%Y-%m-%dT%H:%M:%SZ)"'",
  "numeric_values": {"wind_speed": 7.5, "battery": 3.1}
}]}'

TOKEN=$admin_token
api POST customers "{\"name\":\"Harbour $RUN\",\"contact\":\"office@harbour.example\"}"
customer_id=$(field customer_id)
api POST assets "{\"name\":\"Harbour\",\"type\":\"site\",\"customer_id\":\"$customer_id\"}"
site_id=$(field asset_id)
api POST assets "{\"name\":\"Pier 4\",\"type\":\"pier\",\"parent_asset_id\":\"$site_id\",\"customer_id\":\"$customer_id\"}"
api POST devices "{\"hardware_id\":\"own-$RUN\",\"customer_id\":\"$customer_id\"}"
own_id=$(field device_id)
# The claimed device is not the customer's; the view shows its wind from 2026 on, and not its battery.
api POST entity-views "{
  \"name\": \"Wind at pier 4\",
  \"device_id\": \"$DEVICE_ID\",
  \"keys\": [\"wind_speed\"],
  \"start_time\": \"2026-01-01T00:00:00Z\",
  \"customer_id\": \"$customer_id\"
}"
view_id=$(field entity_view_id)
password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
api POST auth/users "{
  \"email\": \"harbour-$RUN@demo.example\",
  \"role\": \"viewer\",
  \"password\": \"$password\",
  \"customer_id\": \"$customer_id\"
}"
user_id=$(field user_id)

api POST auth/login "{\"email\":\"harbour-$RUN@demo.example\",\"password\":\"$password\"}"
TOKEN=$(field access_token)
api GET devices
api GET "assets?parent_asset_id=$site_id"
api GET "telemetry/$view_id/latest"
api GET "telemetry/$view_id?order=desc&page_size=10"
# The device itself does not exist for this user: 404, NOT_FOUND.
if api GET "devices/$DEVICE_ID"; then exit 1; fi

TOKEN=$admin_token
api DELETE "auth/users/$user_id"
api DELETE "entity-views/$view_id"
api DELETE "devices/$own_id"

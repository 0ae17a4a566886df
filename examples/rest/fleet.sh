#!/usr/bin/env bash
# Imports devices from a CSV file, exports them, groups them by a query, changes and counts them, and has events sent.
. "$(dirname "$0")/common.sh"
sign_in

file=$(mktemp)
cat > "$file" <<CSV
name,hardware_id,tags
Pier 1,import-$RUN-1,"{""run"":""$RUN""}"
Pier 2,import-$RUN-2,"{""run"":""$RUN""}"
CSV

import() {
  curl -sS --fail-with-body -H "authorization: Bearer $TOKEN" -H 'content-type: text/csv' \
    --data-binary "@$file" "$KELLET_URL/api/v1/devices/import$1"
}
import '?dry_run=true'
import ''
import ''
curl -sS -H "authorization: Bearer $TOKEN" "$KELLET_URL/api/v1/devices/export?format=csv&tag=run=$RUN"

api POST device-groups "{\"name\":\"import-$RUN\",\"query\":{\"tag\":[\"run=$RUN\"]}}"
group_id=$(field group_id)
api POST devices/bulk "{\"filter\":{\"group_id\":\"$group_id\"},\"action\":\"set_tags\",\"value\":{\"site\":\"pier\"},\"expected\":2}"
api GET "devices/statistics?group_id=$group_id"

api POST webhooks '{"url":"https://example.com/events","secret":"correct horse","events":["alarm.raised"]}'
webhook_id=$(field webhook_id)
api GET "webhooks/$webhook_id/deliveries"
api DELETE "webhooks/$webhook_id"

api POST devices/bulk "{\"filter\":{\"tag\":[\"run=$RUN\"]},\"action\":\"delete\",\"expected\":2}"

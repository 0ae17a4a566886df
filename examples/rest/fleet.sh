#!/usr/bin/env bash
# Imports devices from a CSV file and exports them.
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

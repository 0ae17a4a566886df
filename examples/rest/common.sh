# Sourced by the examples: where the API is, and the three lines they would all repeat. Needs curl, and node to read
# the addresses and passwords of the local stack (`make dev`); set KELLET_URL, KELLET_EMAIL and KELLET_PASSWORD for another.
set -euo pipefail

of_stack() { node -p "JSON.parse(require('fs').readFileSync('${KELLET_DEV_JSON:-.kellet/dev.json}', 'utf8')).$1"; }

: "${KELLET_URL:=$(of_stack rest)}"
: "${KELLET_EMAIL:=$(of_stack email)}"
: "${KELLET_PASSWORD:=$(of_stack password)}"

# A suffix for names, so that an example can run twice.
RUN=$(date +%s)$$

# api METHOD PATH [JSON]: calls the API with the credential in $TOKEN and prints the answer. An error ends the example.
api() {
  echo "> $1 /api/v1/$2" >&2
  curl --silent --show-error --fail-with-body --request "$1" "$KELLET_URL/api/v1/$2" \
    --header "authorization: Bearer ${TOKEN:-}" \
    ${3:+--header 'content-type: application/json' --data "$3"} || { echo; return 1; }
  echo
}

# field NAME: the first text of that name in the JSON on stdin.
field() { grep -o "\"$1\":\"[^\"]*\"" | head -1 | cut -d '"' -f 4; }

# sign_in: sets $TOKEN to an access token of the administrator.
sign_in() {
  TOKEN=
  TOKEN=$(api POST auth/login "{\"email\":\"$KELLET_EMAIL\",\"password\":\"$KELLET_PASSWORD\"}" | field access_token)
}

# claim_device: makes a profile and a claimed device; sets $PROFILE_ID, $DEVICE_ID and $DEVICE_KEY.
claim_device() {
  PROFILE_ID=$(api POST profiles "{\"name\":\"example-$RUN\",\"type\":\"example-$RUN\"}" | field profile_id)
  key=$(api POST provisioning/templates "{\"name\":\"example-$RUN\",\"profile_id\":\"$PROFILE_ID\"}" | field provision_key)
  claim=$(api POST provision "{\"provision_key\":\"$key\",\"device_name\":\"Example\",\"hardware_id\":\"ex-$RUN\"}")
  DEVICE_ID=$(echo "$claim" | field device_id)
  DEVICE_KEY=$(echo "$claim" | field api_key)
}

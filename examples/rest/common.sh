# Sourced by the examples: the address of the API and shared functions. Needs curl, and node to read the addresses and
# passwords of the local stack (`make dev`). For other installations set KELLET_URL, KELLET_EMAIL and KELLET_PASSWORD.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Prefer the Node of this checkout, because the system's version may lack WebSocket.
PATH=$root/node_modules/.bin:$PATH

of_stack() { node -p "JSON.parse(require('fs').readFileSync('$stack', 'utf8')).$1"; }

stack=${KELLET_DEV_JSON:-$root/.kellet/dev.json}
if [ -z "${KELLET_URL:-}" ] && [ ! -e "$stack" ]; then
  echo "$stack not found: run 'make dev' first, or set KELLET_URL, KELLET_EMAIL and KELLET_PASSWORD" >&2
  exit 1
fi
: "${KELLET_URL:=$(of_stack rest)}"
: "${KELLET_EMAIL:=$(of_stack email)}"
: "${KELLET_PASSWORD:=$(of_stack password)}"

# Suffix for names, so that an example can run repeatedly.
RUN=$(date +%s)$$

# api METHOD PATH [JSON]: calls the API with the credential in $TOKEN, prints the request (without passwords) and the response,
# and stores the response in $RESPONSE. An error ends the example.
api() {
  local result=0
  echo "> $1 /api/v1/$2${3:+ $(sed -E 's/("(admin_)?password": ?)"[^"]*"/\1"…"/' <<< "$3")}"
  RESPONSE=$(curl --silent --show-error --fail-with-body --request "$1" "$KELLET_URL/api/v1/$2" \
    --header "authorization: Bearer ${TOKEN:-}" \
    ${3:+--header 'content-type: application/json' --data "$3"}) || result=$?
  echo "$RESPONSE"
  return $result
}

# field NAME: prints the first string field with that name in $RESPONSE.
field() { grep -o "\"$1\":\"[^\"]*\"" <<< "$RESPONSE" | head -1 | cut -d '"' -f 4; }

# sign_in: sets $TOKEN to an access token of the administrator.
sign_in() {
  TOKEN=
  api POST auth/login "{\"email\":\"$KELLET_EMAIL\",\"password\":\"$KELLET_PASSWORD\"}"
  TOKEN=$(field access_token)
}

# claim_device: creates a profile and claims a device; sets $PROFILE_ID, $DEVICE_ID and $DEVICE_KEY.
claim_device() {
  api POST profiles "{\"name\":\"example-$RUN\",\"type\":\"example-$RUN\"}"
  PROFILE_ID=$(field profile_id)
  api POST provisioning/templates "{\"name\":\"example-$RUN\",\"profile_id\":\"$PROFILE_ID\"}"
  local key=$(field provision_key)
  api POST provision "{\"provision_key\":\"$key\",\"device_name\":\"Example\",\"hardware_id\":\"ex-$RUN\"}"
  DEVICE_ID=$(field device_id)
  DEVICE_KEY=$(field api_key)
}

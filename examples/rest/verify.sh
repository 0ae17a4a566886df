#!/usr/bin/env bash
# Verifies a point by its values, by its hash, and with a bundle that anyone can check without Kellet.
. "$(dirname "$0")/common.sh"
sign_in
claim_device
user_token=$TOKEN

point='"device_id":"'"$DEVICE_ID"'","timestamp":"2026-01-31T12:00:00Z","numeric_values":{"temperature":4.5}'
TOKEN=$DEVICE_KEY
api POST telemetry "{\"points\":[{$point}]}"

# There is no proof (404) until the batch has been sealed, submitted and mined.
TOKEN=$user_token
echo 'waiting for the proof: a batch is sealed after 30 seconds, then mined'
until api POST verify/raw "{$point}" > /dev/null 2>&1; do sleep 1; done
echo "> POST /api/v1/verify/raw {$point}"
echo "$RESPONSE"
data_hash=$(field data_hash)
batch_id=$(field batch_id)

api GET "verify/hash/$data_hash?include_bundle=true" > /dev/null
echo "> GET /api/v1/verify/hash/$data_hash?include_bundle=true"
echo "$RESPONSE" | cut -c 1-600
# Anyone can verify the bundle with a header source they trust, without trusting Kellet (here: that of the local stack).
if [ -e "$stack" ] && [ "$KELLET_URL" = "$(of_stack rest)" ]; then : "${KELLET_HEADERS_URL:=$(of_stack devchain)}"; fi
if [ -n "${KELLET_HEADERS_URL:-}" ]; then
  echo "\$ kellet-verify - --headers-url $KELLET_HEADERS_URL"
  echo "$RESPONSE" | kellet-verify - --headers-url "$KELLET_HEADERS_URL"
fi
api GET "verify/batch/$batch_id?page_size=10" | cut -c 1-600
api GET 'verify/proofs?limit=1' | cut -c 1-600

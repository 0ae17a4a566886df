#!/usr/bin/env bash
# Signs in, refreshes the tokens, lists the sessions, and signs out.
. "$(dirname "$0")/common.sh"

api POST auth/login "{\"email\":\"$KELLET_EMAIL\",\"password\":\"$KELLET_PASSWORD\"}"
refresh_token=$(field refresh_token)

# A refresh token can be used once; the response contains the next one.
api POST auth/refresh "{\"refresh_token\":\"$refresh_token\"}"
TOKEN=$(field access_token)

api GET auth/sessions
api POST auth/validate "{\"token\":\"$TOKEN\"}"
api POST auth/logout

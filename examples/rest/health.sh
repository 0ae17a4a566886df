#!/usr/bin/env bash
# Liveness, readiness and the OpenAPI document. The first two need no credential.
. "$(dirname "$0")/common.sh"

curl --silent --show-error --fail "$KELLET_URL/healthz"; echo
curl --silent --show-error --fail "$KELLET_URL/readyz"; echo

sign_in
api GET openapi.json | cut -c 1-300

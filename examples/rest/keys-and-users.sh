#!/usr/bin/env bash
# Creates a read-only API key for a service, and a user with the viewer role.
. "$(dirname "$0")/common.sh"
sign_in
admin_token=$TOKEN

api POST auth/api-keys '{"name":"reporting","scopes":["devices:read"],"expires_in_seconds":3600}'
key_id=$(field key_id)

TOKEN=$(field api_key)
api GET 'devices?page_size=1'
# A call outside its scopes is rejected: 403, PERMISSION_DENIED.
if api POST devices '{"hardware_id":"refused"}'; then exit 1; fi

TOKEN=$admin_token
api DELETE "auth/api-keys/$key_id"
api POST auth/users '{
  "email": "viewer-'"$RUN"'@demo.example",
  "name": "A viewer",
  "role": "viewer",
  "password": "correct horse battery staple"
}'
user_id=$(field user_id)
api GET "auth/users/$user_id"
api DELETE "auth/users/$user_id"

#!/usr/bin/env bash
# The platform administrator creates a tenant; the tenant's own administrator signs in to it.
. "$(dirname "$0")/common.sh"
admin_email=admin@example-$RUN.example
admin_password="first password of $RUN"

KELLET_EMAIL=$(of_stack platform.email) KELLET_PASSWORD=$(of_stack platform.password)
sign_in
api POST tenants '{
  "tenant_id": "example-'"$RUN"'",
  "name": "An example",
  "rate_limit_per_minute": 600,
  "admin_email": "'"$admin_email"'",
  "admin_password": "'"$admin_password"'"
}'
api PATCH "tenants/example-$RUN" '{"rate_limit_per_minute":1200}'
platform_token=$TOKEN

KELLET_EMAIL=$admin_email KELLET_PASSWORD=$admin_password
sign_in
api GET tenant
api PATCH tenant '{"defaults":{"offline_after_seconds":120}}'

TOKEN=$platform_token
api GET 'tenants?page_size=10'
api DELETE "tenants/example-$RUN"

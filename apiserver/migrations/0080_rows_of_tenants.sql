-- What is done to all rows of a tenant finds them by an index, whatever the other tenants have: revoking its credentials, deleting
-- and exporting its data.
CREATE INDEX api_keys_by_tenant ON api_keys (tenant_id);
CREATE INDEX provision_keys_by_tenant ON provision_keys (tenant_id);
CREATE INDEX sessions_by_tenant ON sessions (tenant_id);
CREATE INDEX telemetry_latest_by_tenant ON telemetry_latest (tenant_id);
CREATE INDEX cold_files_by_tenant ON cold_files (tenant_id);

-- Tenants take turns at the broker, so the relay reads the events of each; a purge and an export find those of one tenant.
CREATE INDEX outbox_by_tenant ON outbox (tenant_id, position);

-- The purge of a tenant finds its failed sign-ins by this index, too: of all rows, because it does not know of a condition. Rows of
-- an address alone, which has no account, have no tenants.
DROP INDEX login_failures_by_tenant;
CREATE INDEX login_failures_by_tenant ON login_failures USING gin (tenant_ids);

-- The end of a tenant: a period of grace in which it can be restored, then the purge of its data.

ALTER TABLE tenants
  -- When its data is purged; NULL: it is not deleted.
  ADD COLUMN purge_at timestamptz,
  -- Set when the purge begins, after which the tenant cannot be restored, and when nothing is left but this row.
  ADD COLUMN purge_started_at timestamptz,
  ADD COLUMN purged_at timestamptz,
  -- The Tenant resource that was being deleted when the tenant was restored; its deletion does not delete the tenant again.
  ADD COLUMN restored_resource_uid text NOT NULL DEFAULT '';

-- Tenants that earlier releases deleted: their data was kept.
UPDATE tenants SET purge_at = now() + interval '30 days' WHERE deleted_at IS NOT NULL;

CREATE INDEX tenants_to_purge ON tenants (purge_at) WHERE purged_at IS NULL AND purge_at IS NOT NULL;

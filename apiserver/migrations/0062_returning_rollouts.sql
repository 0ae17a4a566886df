-- Finds, when a package is deleted, the rollouts that have rolled devices back to it of which not all have returned.
CREATE INDEX ota_rollouts_returning ON ota_rollouts (tenant_id, rollback_package_id) WHERE rollback_pending > 0;

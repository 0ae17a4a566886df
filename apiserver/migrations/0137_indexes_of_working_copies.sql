-- without a transaction
-- The drift check reads working copies in pages by tenant and id (control/working-copies.ts). The rows of completed rollouts and deleted
-- packages stay, so that the primary keys would lead through ever more of them.
CREATE INDEX CONCURRENTLY IF NOT EXISTS ota_rollouts_working ON ota_rollouts (tenant_id, rollout_id) WHERE phase <> 'completed';
CREATE INDEX CONCURRENTLY IF NOT EXISTS ota_packages_working ON ota_packages (tenant_id, package_id) WHERE deleted_at IS NULL;

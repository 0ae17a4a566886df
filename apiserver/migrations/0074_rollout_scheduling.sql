-- Rollouts of which devices may have to be scheduled: set by whatever makes scheduling due, in its own transaction, and cleared
-- by the scheduling (docs/decisions/0061). It shares an index with the other work in pages.
ALTER TABLE ota_rollouts ADD COLUMN awaits_scheduling boolean NOT NULL DEFAULT false;
UPDATE ota_rollouts SET awaits_scheduling = true WHERE phase = 'active';
DROP INDEX ota_rollouts_with_work;
CREATE INDEX ota_rollouts_with_work ON ota_rollouts (tenant_id, rollout_id) WHERE pending_work <> '' OR awaits_scheduling;

-- What is kept for a time only is found by when it ends, and deleted in small transactions.

-- The transactions of anchors that are so deep that nothing watches them. Their batches have what proves them.
CREATE INDEX chain_transactions_final ON chain_transactions (created_at) WHERE state = 'final' AND purpose = 'anchor';

-- Completed rollouts whose devices are still stored.
ALTER TABLE ota_rollouts ADD COLUMN has_devices boolean NOT NULL DEFAULT true;
CREATE INDEX ota_rollouts_completed ON ota_rollouts (updated_at) WHERE phase = 'completed' AND has_devices;

-- Tables whose rows come and go are vacuumed by number, not by share, and so before much of them is dead.
ALTER TABLE device_commands SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE ota_rollout_devices SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE chain_transactions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE wallet_outputs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE anchor_batches SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE arc_callbacks SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE telemetry_idempotency SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE telemetry_latest SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE devices SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE sessions SET (autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE webhook_deliveries SET (autovacuum_vacuum_scale_factor = 0.02);

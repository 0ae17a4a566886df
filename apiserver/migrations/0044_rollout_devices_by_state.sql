-- Lists of a rollout's devices by state, and a retry of all failed ones in small transactions.
CREATE INDEX ota_rollout_devices_by_state ON ota_rollout_devices (tenant_id, rollout_id, state, device_id);

-- retry: send the update again to those that failed or timed out.
ALTER TABLE ota_rollouts DROP CONSTRAINT ota_rollouts_pending_work_check;
ALTER TABLE ota_rollouts ADD CONSTRAINT ota_rollouts_pending_work_check
  CHECK (pending_work IN ('', 'retry', 'turn_back', 'withdraw', 'drop_cohort'));

-- A rollout's assignment takes effect when the update is delivered or the device begins to download it. Until then it is in a slot
-- of its own (next_fw, next_sw), so that a rollout that is held or withdrawn leaves the device what it had.
ALTER TABLE ota_assignments DROP CONSTRAINT ota_assignments_slot_check;
ALTER TABLE ota_assignments ADD CONSTRAINT ota_assignments_slot_check
  CHECK (slot IN ('override', 'fw', 'sw', 'next_fw', 'next_sw'));
UPDATE ota_assignments a SET slot = 'next_' || a.slot
FROM ota_rollouts r, ota_rollout_devices m
WHERE a.slot IN ('fw', 'sw') AND r.tenant_id = a.tenant_id AND r.rollout_id = a.rollout_id AND r.phase IN ('active', 'paused')
  AND m.tenant_id = a.tenant_id AND m.rollout_id = a.rollout_id AND m.device_id = a.device_id AND m.state = 'scheduled';

-- The command that tells the device of its own assignment.
ALTER TABLE ota_assignments ADD COLUMN correlation_id uuid;

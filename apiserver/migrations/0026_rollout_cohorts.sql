-- The order in which a rollout reaches its devices, written down once, so that scheduling costs what it schedules and no longer
-- depends on the size of the fleet. A row per eligible device, also of those that were scheduled. It is filled in pages by
-- device_id and kept by whatever changes a device (docs/decisions/0031). No foreign key: it would be checked for every row, and a
-- rollout is deleted only with its tenant.
CREATE TABLE ota_rollout_cohort (
  tenant_id text NOT NULL,
  rollout_id uuid NOT NULL,
  -- SHA-256 of package id, 0x00 and device id.
  rank bytea NOT NULL,
  device_id uuid NOT NULL,
  -- Joined before the last covered device and has not been scheduled yet.
  late boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_id, rollout_id, rank)
);
CREATE INDEX ota_rollout_cohort_late ON ota_rollout_cohort (tenant_id, rollout_id, rank) WHERE late;
SELECT kellet_isolate('ota_rollout_cohort');

ALTER TABLE ota_rollouts
  -- Whether the cohort is complete; until then, the last device looked at (NULL: none).
  ADD COLUMN cohort_ready boolean NOT NULL DEFAULT false,
  ADD COLUMN cohort_cursor uuid,
  -- Rows of the cohort.
  ADD COLUMN cohort_count int4 NOT NULL DEFAULT 0,
  -- What remains to be done for many devices, in small transactions: turn_back (send the rollback to those that the update
  -- reached), withdraw (take back what was not delivered), drop_cohort. work_cursor is the last device done.
  ADD COLUMN pending_work text NOT NULL DEFAULT '' CHECK (pending_work IN ('', 'turn_back', 'withdraw', 'drop_cohort')),
  ADD COLUMN work_cursor uuid,
  -- How often the rollout was resumed. A failure of before the last resume is acknowledged.
  ADD COLUMN resumes int4 NOT NULL DEFAULT 0;
CREATE INDEX ota_rollouts_with_work ON ota_rollouts (tenant_id, rollout_id) WHERE pending_work <> '';

-- The value of resumes when the device failed. It replaces acknowledged, which a resume wrote for every failed device; the column
-- stays until no earlier release writes it.
ALTER TABLE ota_rollout_devices ADD COLUMN failed_in int4 NOT NULL DEFAULT 0;
UPDATE ota_rollout_devices SET failed_in = -1 WHERE acknowledged;

-- Running rollouts continue: their cohort is filled, and what is covered is counted again along it, without reading the fleet.
-- covered_count: rows of the cohort up to covered_rank.
UPDATE ota_rollouts SET covered_count = 0, covered_rank = NULL, scheduling_due = false WHERE phase <> 'completed';

-- What a rollout has not delivered is found along its devices.
DROP INDEX device_commands_undelivered_of_rollout;

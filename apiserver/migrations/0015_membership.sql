-- Membership of rollouts is kept up by what changes it, in the same transaction, instead of being found out by looking over
-- the fleet.
ALTER TABLE ota_rollouts
  -- Devices on their way back that have neither reported nor timed out.
  ADD COLUMN rollback_pending int4 NOT NULL DEFAULT 0,
  -- A device that the covered share contains may not be scheduled yet, or the eligible devices must be counted anew. True to
  -- begin with: of rollouts that run already nobody has kept count.
  ADD COLUMN scheduling_due boolean NOT NULL DEFAULT true,
  -- What the last look over the fleet covered and scheduled in full: how many of the eligible devices, and the place of the last
  -- of them in the cohort's order; NULL: none.
  ADD COLUMN covered_count int4 NOT NULL DEFAULT 0,
  ADD COLUMN covered_rank bytea;
-- The device has got another profile or an assignment of its own: it is in no count any more, and its row is kept for its late
-- reports.
ALTER TABLE ota_rollout_devices ADD COLUMN has_left boolean NOT NULL DEFAULT false;
UPDATE ota_rollouts r SET rollback_pending =
  (SELECT count(*) FROM ota_rollout_devices m
   WHERE m.tenant_id = r.tenant_id AND m.rollout_id = r.rollout_id
     AND m.rolling_back AND m.state IN ('scheduled', 'sent', 'downloading'))
WHERE phase = 'rolling_back';

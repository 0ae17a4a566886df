-- Cancelled rollouts of earlier releases kept devices that had not reported as scheduled or sent for ever. The data plane skips
-- them as it does now (rollout-work.ts), in small transactions.
UPDATE ota_rollouts SET pending_work = 'withdraw', work_cursor = NULL
WHERE outcome = 'cancelled' AND pending_work IN ('', 'drop_cohort')
  AND scheduled > succeeded + failed + timed_out + skipped;

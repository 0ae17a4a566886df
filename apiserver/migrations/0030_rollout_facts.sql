-- A pause for a missing signature has a reason of its own. It was written as an operator's, by this name.
UPDATE ota_rollouts SET pause_conditions = (
  SELECT jsonb_agg(CASE WHEN condition->>'by' = 'require_signature'
    THEN condition || '{"reason": "SignatureRequired", "by": "kellet"}' ELSE condition END)
  FROM jsonb_array_elements(pause_conditions) AS c (condition))
WHERE phase = 'paused' AND pause_conditions @> '[{"by": "require_signature"}]';

-- Whether a skipped device was counted as sent. Its attempts told that, and were raised for it.
ALTER TABLE ota_rollout_devices ADD COLUMN was_sent boolean NOT NULL DEFAULT false;

-- Its custom resource is being deleted and waits until nothing uses the package any more: nothing new may use it.
ALTER TABLE ota_packages ADD COLUMN deletion_pending boolean NOT NULL DEFAULT false;

ALTER TABLE ota_rollouts
  -- The share that the manifest covered before it was lowered, while it covers less; 0: it was not lowered.
  ADD COLUMN lowered_from_percent int4 NOT NULL DEFAULT 0,
  -- The custom resource that the rollout belongs to, or belonged to when it ended; empty: unknown.
  ADD COLUMN resource_uid text NOT NULL DEFAULT '';

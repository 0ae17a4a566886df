-- What changed on each device.

-- Written by a trigger, so that no change of a device can be made without its event, in the same transaction.
-- Trusted for: every change of these kinds within the retention period.
CREATE TABLE device_history (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  position int8 GENERATED ALWAYS AS IDENTITY,
  time timestamptz NOT NULL DEFAULT now(),
  kind text NOT NULL CHECK (kind IN ('firmware', 'software', 'status', 'profile', 'credential')),
  -- The values before and after; '' if there was none.
  previous text NOT NULL,
  current text NOT NULL,
  PRIMARY KEY (tenant_id, device_id, position)
);
-- For the sweep. A status changes often, and is kept for a shorter time.
CREATE INDEX device_history_status_by_age ON device_history (time) WHERE kind = 'status';
CREATE INDEX device_history_others_by_age ON device_history (time) WHERE kind <> 'status';
SELECT kellet_isolate('device_history', 'SELECT, INSERT');

CREATE FUNCTION device_history_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO device_history (tenant_id, device_id, kind, previous, current)
    SELECT NEW.tenant_id, NEW.device_id, kind, previous, current
    FROM (VALUES
      ('firmware', OLD.firmware_version, NEW.firmware_version),
      ('software', OLD.software_version, NEW.software_version),
      ('status', OLD.status, NEW.status),
      ('profile', coalesce(OLD.profile_id::text, ''), coalesce(NEW.profile_id::text, ''))
    ) AS change (kind, previous, current)
    WHERE previous <> current;
  RETURN NULL;
END
$$;
-- Signs of life change no column of these, and so cost only the comparison.
CREATE TRIGGER device_history AFTER UPDATE ON devices FOR EACH ROW
  WHEN (OLD.firmware_version <> NEW.firmware_version OR OLD.software_version <> NEW.software_version
        OR OLD.status <> NEW.status OR OLD.profile_id IS DISTINCT FROM NEW.profile_id)
  EXECUTE FUNCTION device_history_record();

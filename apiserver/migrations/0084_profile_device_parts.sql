-- More parts of the number of a profile's devices, so that the connections of a process, whose process ids follow one
-- another, each have their own.

CREATE OR REPLACE FUNCTION count_profile_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  before uuid;
  after uuid;
BEGIN
  IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
    before := OLD.profile_id;
  END IF;
  IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
    after := NEW.profile_id;
  END IF;
  IF before IS DISTINCT FROM after THEN
    INSERT INTO profile_devices AS held (tenant_id, profile_id, part, devices)
      SELECT coalesce(NEW.tenant_id, OLD.tenant_id), profile, pg_backend_pid() % 64, delta
      FROM (VALUES (before, -1), (after, 1)) AS moved (profile, delta) WHERE profile IS NOT NULL ORDER BY profile
      ON CONFLICT (tenant_id, profile_id, part) DO UPDATE SET devices = held.devices + excluded.devices, changed = true;
  END IF;
  RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION count_inserted_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_count_changes (tenant_id, group_id, profile_id, status, firmware_version, devices)
    SELECT tenant_id, kellet_no_id(), coalesce(profile_id, kellet_no_id()), status, firmware_version, count(*)
    FROM inserted WHERE deleted_at IS NULL GROUP BY tenant_id, profile_id, status, firmware_version;
  INSERT INTO profile_devices AS held (tenant_id, profile_id, part, devices)
    SELECT tenant_id, profile_id, pg_backend_pid() % 64, count(*) FROM inserted
    WHERE deleted_at IS NULL AND profile_id IS NOT NULL GROUP BY tenant_id, profile_id ORDER BY tenant_id, profile_id
    ON CONFLICT (tenant_id, profile_id, part) DO UPDATE SET devices = held.devices + excluded.devices, changed = true;
  RETURN NULL;
END
$$;

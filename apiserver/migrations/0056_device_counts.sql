-- The number of devices by what statistics show and quotas limit, at a cost that does not grow with the fleet.

-- Trusted for: the number of devices that are not deleted, together with device_count_changes.
CREATE TABLE device_counts (
  tenant_id text NOT NULL,
  -- Zeros: all devices, in groups or not.
  group_id uuid NOT NULL,
  -- Zeros: devices without a profile.
  profile_id uuid NOT NULL,
  status text NOT NULL,
  firmware_version text NOT NULL,
  devices int4 NOT NULL,
  PRIMARY KEY (tenant_id, group_id, profile_id, status, firmware_version)
) WITH (fillfactor = 50);
CREATE INDEX device_counts_empty ON device_counts (tenant_id) WHERE devices = 0;
SELECT kellet_isolate('device_counts', 'SELECT, DELETE');

-- Changes that are not in device_counts yet. Rows are only added and taken, so no two changes of devices wait for each other.
CREATE TABLE device_count_changes (
  position int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  group_id uuid NOT NULL,
  profile_id uuid NOT NULL,
  status text NOT NULL,
  firmware_version text NOT NULL,
  devices int4 NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX device_count_changes_by_group ON device_count_changes (tenant_id, group_id);
SELECT kellet_isolate('device_count_changes', 'SELECT');

-- A constant, as in device_counts.
CREATE FUNCTION kellet_no_id() RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT '00000000-0000-0000-0000-000000000000'::uuid $$;

-- Triggers, so that processes of an earlier version count too. Those of inserted rows run once for a statement.
CREATE FUNCTION count_inserted_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_count_changes (tenant_id, group_id, profile_id, status, firmware_version, devices)
    SELECT tenant_id, kellet_no_id(), coalesce(profile_id, kellet_no_id()), status, firmware_version, count(*)
    FROM inserted WHERE deleted_at IS NULL GROUP BY tenant_id, profile_id, status, firmware_version;
  INSERT INTO profile_devices AS held (tenant_id, profile_id, part, devices)
    SELECT tenant_id, profile_id, pg_backend_pid() % 16, count(*) FROM inserted
    WHERE deleted_at IS NULL AND profile_id IS NOT NULL GROUP BY tenant_id, profile_id ORDER BY tenant_id, profile_id
    ON CONFLICT (tenant_id, profile_id, part) DO UPDATE SET devices = held.devices + excluded.devices, changed = true;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_inserted_devices FROM PUBLIC;
DROP TRIGGER profile_devices_inserted ON devices;
CREATE TRIGGER profile_devices_deleted AFTER DELETE ON devices FOR EACH ROW EXECUTE FUNCTION count_profile_devices();
CREATE TRIGGER device_counts_inserted AFTER INSERT ON devices
  REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION count_inserted_devices();

CREATE FUNCTION count_changed_device() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_count_changes (tenant_id, group_id, profile_id, status, firmware_version, devices)
    SELECT NEW.tenant_id, g.group_id, coalesce(v.profile_id, kellet_no_id()), v.status, v.firmware_version, v.devices
    FROM (VALUES (OLD.profile_id, OLD.status, OLD.firmware_version, OLD.deleted_at IS NULL, -1),
                 (NEW.profile_id, NEW.status, NEW.firmware_version, NEW.deleted_at IS NULL, 1))
           AS v (profile_id, status, firmware_version, counts, devices),
         (SELECT kellet_no_id() AS group_id UNION ALL SELECT group_id FROM device_group_members
          WHERE tenant_id = NEW.tenant_id AND device_id = NEW.device_id) AS g
    WHERE v.counts;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_changed_device FROM PUBLIC;
-- Signs of life change no column of these, and so cost only the comparison.
CREATE TRIGGER device_counts_changed AFTER UPDATE ON devices FOR EACH ROW
  WHEN (OLD.status <> NEW.status OR OLD.firmware_version <> NEW.firmware_version
        OR OLD.profile_id IS DISTINCT FROM NEW.profile_id OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL))
  EXECUTE FUNCTION count_changed_device();

-- Who adds or removes members holds the locks of their devices, so that what is read here does not change meanwhile.
CREATE FUNCTION count_moved_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_count_changes (tenant_id, group_id, profile_id, status, firmware_version, devices)
    SELECT m.tenant_id, m.group_id, coalesce(d.profile_id, kellet_no_id()), d.status, d.firmware_version,
      CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
    FROM moved m JOIN devices d ON d.tenant_id = m.tenant_id AND d.device_id = m.device_id
    WHERE d.deleted_at IS NULL GROUP BY m.tenant_id, m.group_id, d.profile_id, d.status, d.firmware_version;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_moved_devices FROM PUBLIC;
CREATE TRIGGER device_counts_joined AFTER INSERT ON device_group_members
  REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION count_moved_devices();
CREATE TRIGGER device_counts_left AFTER DELETE ON device_group_members
  REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION count_moved_devices();

-- The triggers above lock out all writers until the end of this transaction.
INSERT INTO device_counts (tenant_id, group_id, profile_id, status, firmware_version, devices)
  SELECT tenant_id, kellet_no_id(), coalesce(profile_id, kellet_no_id()), status, firmware_version, count(*)
  FROM devices WHERE deleted_at IS NULL GROUP BY tenant_id, profile_id, status, firmware_version
  UNION ALL
  SELECT d.tenant_id, m.group_id, coalesce(d.profile_id, kellet_no_id()), d.status, d.firmware_version, count(*)
  FROM devices d JOIN device_group_members m USING (tenant_id, device_id)
  WHERE d.deleted_at IS NULL GROUP BY d.tenant_id, m.group_id, d.profile_id, d.status, d.firmware_version;

-- Device groups whose members are the devices that match a query.

-- The filters of the device list, proto names; NULL: a group whose members are added one by one.
ALTER TABLE device_groups ADD COLUMN query jsonb;
CREATE INDEX device_groups_with_query ON device_groups (tenant_id) WHERE query IS NOT NULL;

-- Changed devices of tenants with such groups. Rows are only added and taken, so no two changes of a device wait here.
-- Trusted for: every change after which a device has not been compared with the queries yet.
CREATE TABLE device_group_checks (
  position int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  device_id uuid NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX device_group_checks_by_device ON device_group_checks (tenant_id, device_id);
SELECT kellet_isolate('device_group_checks', 'SELECT, DELETE');

-- Devices to be compared with queries, in order of their ids: after a change of a query, or of tags that devices inherit.
CREATE TABLE device_group_walks (
  position int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  -- NULL: all groups with a query.
  group_id uuid,
  -- NULL: all devices. Zeros: those without a profile.
  profile_id uuid,
  -- The last device compared so far.
  after_device_id uuid NOT NULL DEFAULT kellet_no_id()
);
CREATE INDEX device_group_walks_by_group ON device_group_walks (tenant_id, group_id);
SELECT kellet_isolate('device_group_walks');

CREATE FUNCTION check_inserted_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_group_checks (tenant_id, device_id)
    SELECT tenant_id, device_id FROM inserted i
    WHERE EXISTS (SELECT FROM device_groups g WHERE g.tenant_id = i.tenant_id AND g.query IS NOT NULL);
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION check_inserted_devices FROM PUBLIC;
CREATE TRIGGER device_group_checks_inserted AFTER INSERT ON devices
  REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION check_inserted_devices();

CREATE FUNCTION check_changed_device() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  status_only boolean := OLD.name = NEW.name AND OLD.hardware_id = NEW.hardware_id AND OLD.tags = NEW.tags
    AND OLD.profile_id IS NOT DISTINCT FROM NEW.profile_id AND OLD.customer_id IS NOT DISTINCT FROM NEW.customer_id;
BEGIN
  INSERT INTO device_group_checks (tenant_id, device_id)
    SELECT NEW.tenant_id, NEW.device_id
    WHERE EXISTS (SELECT FROM device_groups g WHERE g.tenant_id = NEW.tenant_id AND g.query IS NOT NULL
                  AND (NOT status_only OR g.query ? 'status'));
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION check_changed_device FROM PUBLIC;
-- A deleted device leaves all its groups in the same transaction.
CREATE TRIGGER device_group_checks_changed AFTER UPDATE ON devices FOR EACH ROW
  WHEN (NEW.deleted_at IS NULL AND (OLD.status <> NEW.status OR OLD.name <> NEW.name OR OLD.hardware_id <> NEW.hardware_id
        OR OLD.tags <> NEW.tags OR OLD.profile_id IS DISTINCT FROM NEW.profile_id
        OR OLD.customer_id IS DISTINCT FROM NEW.customer_id))
  EXECUTE FUNCTION check_changed_device();

CREATE FUNCTION check_moved_devices() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_group_checks (tenant_id, device_id)
    SELECT tenant_id, device_id FROM moved m
    WHERE EXISTS (SELECT FROM device_groups g WHERE g.tenant_id = m.tenant_id AND g.query IS NOT NULL
                  AND g.query->>'group_id' = m.group_id::text);
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION check_moved_devices FROM PUBLIC;
CREATE TRIGGER device_group_checks_joined AFTER INSERT ON device_group_members
  REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION check_moved_devices();
CREATE TRIGGER device_group_checks_left AFTER DELETE ON device_group_members
  REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION check_moved_devices();

-- Tags that devices inherit.
CREATE FUNCTION walk_for_tags() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO device_group_walks (tenant_id, profile_id)
    SELECT NEW.tenant_id, CASE TG_TABLE_NAME WHEN 'profiles' THEN (to_jsonb(NEW)->>'profile_id')::uuid ELSE kellet_no_id() END
    WHERE EXISTS (SELECT FROM device_groups g WHERE g.tenant_id = NEW.tenant_id AND g.query ? 'tag');
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION walk_for_tags FROM PUBLIC;
CREATE TRIGGER device_group_walks_of_profile AFTER UPDATE ON profiles FOR EACH ROW
  WHEN (OLD.document->'default_tags' IS DISTINCT FROM NEW.document->'default_tags') EXECUTE FUNCTION walk_for_tags();
CREATE TRIGGER device_group_walks_of_tenant AFTER UPDATE ON tenants FOR EACH ROW
  WHEN (OLD.defaults->'tags' IS DISTINCT FROM NEW.defaults->'tags') EXECUTE FUNCTION walk_for_tags();

-- One walk for each target of a tenant, however often it changes: a walk goes round. A change makes it go on to where it is now.

-- Zeros: it ends with the last device. Otherwise it begins again there, and ends with this device.
ALTER TABLE device_group_walks ADD COLUMN until_device_id uuid NOT NULL DEFAULT kellet_no_id(),
  ADD COLUMN has_begun_again boolean NOT NULL DEFAULT false;

-- A trigger, so that processes of an earlier version add none either. Walks that are added at the same moment may be two.
CREATE FUNCTION join_walk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE device_group_walks SET until_device_id = after_device_id, has_begun_again = false
    WHERE tenant_id = NEW.tenant_id AND group_id IS NOT DISTINCT FROM NEW.group_id
      AND profile_id IS NOT DISTINCT FROM NEW.profile_id;
  IF FOUND THEN RETURN NULL; END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER device_group_walks_joined BEFORE INSERT ON device_group_walks FOR EACH ROW EXECUTE FUNCTION join_walk();

-- Changes are taken by tenant, the oldest first.
ALTER TABLE device_group_checks DROP CONSTRAINT device_group_checks_pkey, ADD PRIMARY KEY (tenant_id, position);

-- Counts that are read often and would otherwise cost more the larger the fleet: devices by profile, and points by day.

-- The number of devices of each profile that are not deleted, in parts that concurrent transactions rarely share.
-- Trusted for: whether devices use a profile.
CREATE TABLE profile_devices (
  tenant_id text NOT NULL,
  profile_id uuid NOT NULL,
  part int2 NOT NULL,
  -- May be negative: a device is not always removed in the part in which it was added.
  devices int4 NOT NULL DEFAULT 0,
  -- Whether the operator has not been told of the number yet.
  changed boolean NOT NULL DEFAULT true,
  PRIMARY KEY (tenant_id, profile_id, part)
) WITH (fillfactor = 50);
CREATE INDEX profile_devices_changed ON profile_devices (tenant_id, profile_id) WHERE changed;
SELECT kellet_isolate('profile_devices', 'SELECT, DELETE');

-- A trigger, so that processes of an earlier version count too.
CREATE FUNCTION count_profile_devices() RETURNS trigger
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
      SELECT coalesce(NEW.tenant_id, OLD.tenant_id), profile, pg_backend_pid() % 16, delta
      FROM (VALUES (before, -1), (after, 1)) AS moved (profile, delta) WHERE profile IS NOT NULL ORDER BY profile
      ON CONFLICT (tenant_id, profile_id, part) DO UPDATE SET devices = held.devices + excluded.devices, changed = true;
  END IF;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_profile_devices FROM PUBLIC;
CREATE TRIGGER profile_devices_inserted AFTER INSERT OR DELETE ON devices
  FOR EACH ROW EXECUTE FUNCTION count_profile_devices();
-- Not for the frequent updates, of status and last_seen.
CREATE TRIGGER profile_devices_updated AFTER UPDATE OF profile_id, deleted_at ON devices
  FOR EACH ROW EXECUTE FUNCTION count_profile_devices();

INSERT INTO profile_devices (tenant_id, profile_id, part, devices)
  SELECT tenant_id, profile_id, 0, count(*) FROM devices WHERE profile_id IS NOT NULL AND deleted_at IS NULL
  GROUP BY tenant_id, profile_id;

-- Points by the UTC day of their arrival, of segments that are counted; kept for a week.
CREATE TABLE telemetry_days (
  tenant_id text NOT NULL,
  day date NOT NULL,
  accepted int8 NOT NULL,
  PRIMARY KEY (tenant_id, day)
);
SELECT kellet_isolate('telemetry_days', 'SELECT');

-- The number of milliseconds from 1970 to the beginning of the current UTC day, as in `received`.
CREATE FUNCTION telemetry_midnight() RETURNS int8 LANGUAGE sql STABLE AS $$
  SELECT (extract(epoch FROM date_trunc('day', now(), 'UTC')) * 1000)::int8
$$;

-- Adds the points of a segment to telemetry_days.
CREATE FUNCTION telemetry_count_days(segment int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'INSERT INTO telemetry_days AS held (tenant_id, day, accepted)
     SELECT tenant_id, (to_timestamp(received / 86400000 * 86400) AT TIME ZONE ''UTC'')::date AS day, count(*)
     FROM telemetry_segment_%s GROUP BY tenant_id, day ORDER BY tenant_id, day
     ON CONFLICT (tenant_id, day) DO UPDATE SET accepted = held.accepted + excluded.accepted', segment);
END
$$;

-- Adds the points of a segment to telemetry_usage and telemetry_days.
CREATE OR REPLACE FUNCTION telemetry_count_segment(segment int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE telemetry_segments SET counted = true WHERE segment_id = segment AND NOT counted;
  IF FOUND THEN
    EXECUTE format(
      'INSERT INTO telemetry_usage AS held (tenant_id, device_id, accepted, stored_bytes)
       SELECT tenant_id, device_id, count(*), sum(octet_length(payload) + 32) FROM telemetry_segment_%s
       GROUP BY tenant_id, device_id ORDER BY tenant_id, device_id
       ON CONFLICT (tenant_id, device_id) DO UPDATE SET accepted = held.accepted + excluded.accepted,
         stored_bytes = held.stored_bytes + excluded.stored_bytes', segment);
    PERFORM telemetry_count_days(segment);
  END IF;
END
$$;

-- What arrived today and is counted already.
DO $$
DECLARE
  segment int8;
BEGIN
  FOR segment IN
    SELECT segment_id FROM telemetry_segments s
    WHERE counted AND state = 'indexed' AND sealed_at >= date_trunc('day', now(), 'UTC') AND EXISTS (
      SELECT FROM pg_attribute
      WHERE attrelid = to_regclass('telemetry_segment_' || s.segment_id) AND attname = 'received' AND NOT attisdropped)
  LOOP
    PERFORM telemetry_count_days(segment);
  END LOOP;
END
$$;

-- Returns what the current tenant has stored in segments that are not counted yet, in all or from one device, and how many of
-- these points arrived today. Runs with the rights of its owner, because a tenant has none on segments, and reads the rows of
-- that tenant alone.
DROP FUNCTION telemetry_uncounted_usage(uuid);
CREATE FUNCTION telemetry_uncounted_usage(device uuid, OUT accepted int8, OUT stored_bytes int8, OUT today int8)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  segments text;
BEGIN
  SELECT string_agg(
      format('SELECT tenant_id, device_id, payload, received FROM telemetry_segment_%s', segment_id), ' UNION ALL ')
    INTO segments FROM telemetry_segments WHERE NOT counted;
  accepted := 0;
  stored_bytes := 0;
  today := 0;
  IF segments IS NOT NULL THEN
    EXECUTE format(
      'SELECT count(*), coalesce(sum(octet_length(payload) + 32), 0), count(*) FILTER (WHERE received >= $3)
       FROM (%s) AS points WHERE tenant_id = $1 AND ($2 IS NULL OR device_id = $2)', segments)
      INTO accepted, stored_bytes, today USING kellet_tenant_id(), device, telemetry_midnight();
  END IF;
END
$$;
REVOKE ALL ON FUNCTION telemetry_uncounted_usage FROM PUBLIC;
GRANT EXECUTE ON FUNCTION telemetry_uncounted_usage TO kellet_tenant;

-- points_today counts what devices sent, as the quota does, and not the points that the service makes: the anchored ends of audit
-- logs and the results of updates.

-- Reports whether the service made the point of a payload. Its points have keys that begin with `kellet.` alone, which no device
-- may use.
CREATE FUNCTION telemetry_is_own(payload text) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT starts_with(payload, '{"numeric_values":{"kellet.') OR
    starts_with(payload, '{"numeric_values":{},"string_values":{"kellet.')
$$;

-- Adds the points of a segment that devices sent to telemetry_days.
CREATE OR REPLACE FUNCTION telemetry_count_days(segment int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'INSERT INTO telemetry_days AS held (tenant_id, day, accepted)
     SELECT tenant_id, (to_timestamp(received / 86400000 * 86400) AT TIME ZONE ''UTC'')::date AS day, count(*)
     FROM telemetry_segment_%s WHERE NOT telemetry_is_own(payload) GROUP BY tenant_id, day ORDER BY tenant_id, day
     ON CONFLICT (tenant_id, day) DO UPDATE SET accepted = held.accepted + excluded.accepted', segment);
END
$$;

-- Returns what the current tenant has stored in segments that are not counted yet, in all or from one device, and how many of
-- these points devices sent today. Runs with the rights of its owner, because a tenant has none on segments, and reads the rows
-- of that tenant alone.
CREATE OR REPLACE FUNCTION telemetry_uncounted_usage(device uuid, OUT accepted int8, OUT stored_bytes int8, OUT today int8)
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
      'SELECT count(*), coalesce(sum(octet_length(payload) + 32), 0),
         count(*) FILTER (WHERE received >= $3 AND NOT telemetry_is_own(payload))
       FROM (%s) AS points WHERE tenant_id = $1 AND ($2 IS NULL OR device_id = $2)', segments)
      INTO accepted, stored_bytes, today USING kellet_tenant_id(), device, telemetry_midnight();
  END IF;
END
$$;

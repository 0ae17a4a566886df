-- Reads of points name the segments that may have them, some at a time. A read of telemetry_points locks each segment with its index,
-- and planning it looks at all of them: with hundreds of segments, a few reads at once fill the lock table of the server.

-- Returns the points of a device of the current tenant in these segments, those of each segment in order of time and hash after a
-- position, at most `most` of them, and none once those before have `most_bytes` of values. `batch` and `hash`: only that point.
-- `cut`: the segment may have more. A segment that was dropped, because it turned cold, has none. Runs with the rights of its owner,
-- because a tenant has none on segments, and reads the rows of that tenant alone.
CREATE FUNCTION telemetry_points_of(segments int8[], device uuid, first int8, until int8, descending boolean,
  after_time int8, after_hash bytea, keys text[], batch uuid, hash bytea, most int4, most_bytes int8)
RETURNS TABLE (segment int8, "time" int8, data_hash bytea, payload text, batches text[], cut boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  direction text := CASE WHEN descending THEN 'DESC' ELSE 'ASC' END;
  conditions text := '';
BEGIN
  IF after_time IS NOT NULL THEN
    conditions := format(' AND (p.time, p.data_hash) %s ($5, $6)', CASE WHEN descending THEN '<' ELSE '>' END);
  END IF;
  IF keys IS NOT NULL THEN
    conditions := conditions ||
      ' AND (p.payload::jsonb -> ''numeric_values'' ?| $7 OR p.payload::jsonb -> ''string_values'' ?| $7)';
  END IF;
  IF batch IS NOT NULL THEN
    conditions := conditions || ' AND p.batch_id = $8 AND p.data_hash = $9';
  END IF;
  FOREACH segment IN ARRAY segments LOOP
    BEGIN
      RETURN QUERY EXECUTE format(
        'SELECT %1$s::int8, s.time, s.data_hash, s.payload, s.batches, s.found >= $10 OR count(*) OVER () < s.found
         FROM (
           SELECT r.*, count(*) OVER () AS found, sum(octet_length(r.payload)) OVER (
             ORDER BY r.time %2$s, r.data_hash %2$s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
           FROM (
             SELECT p.time, p.data_hash, min(p.payload COLLATE "C") AS payload, array_agg(DISTINCT p.batch_id::text) AS batches
             FROM telemetry_segment_%1$s p
             WHERE p.tenant_id = $1 AND p.device_id = $2 AND p.time >= $3 AND p.time < $4%3$s
             GROUP BY p.time, p.data_hash ORDER BY p.time %2$s, p.data_hash %2$s LIMIT $10
           ) AS r
         ) AS s
         WHERE coalesce(s.before, 0) < $11 ORDER BY s.time %2$s, s.data_hash %2$s', segment, direction, conditions)
        USING kellet_tenant_id(), device, first, until, after_time, after_hash, keys, batch, hash, most, most_bytes;
    EXCEPTION WHEN undefined_table THEN
      NULL;
    END;
  END LOOP;
END
$$;
REVOKE ALL ON FUNCTION telemetry_points_of FROM PUBLIC;
GRANT EXECUTE ON FUNCTION telemetry_points_of TO kellet_tenant;

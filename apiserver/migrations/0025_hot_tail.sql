-- The hot tail: points that are durable, but whose effects on latest values and signs of life a process still holds in memory.

-- One row for each writer that may have such points. Made before its first flush; deleted when everything is written, by the
-- process itself or by one that has read the points again after a crash. Reading points again is harmless.
-- Trusted for: all points of the writer received before `since` have been written on.
CREATE TABLE telemetry_tails (
  writer_id uuid PRIMARY KEY,
  -- Milliseconds since 1970, as in `received`.
  since int8 NOT NULL DEFAULT 0,
  -- host:port of the process's internal port, which is asked for what is in its memory; empty: it cannot be asked.
  address text NOT NULL
);

-- Whether telemetry_usage includes the segment's points. The rows of a segment are counted once, when it is indexed. A writer
-- of an earlier version counts its own points, so the default is true.
ALTER TABLE telemetry_segments ADD COLUMN counted boolean NOT NULL DEFAULT true;
CREATE INDEX telemetry_segments_uncounted ON telemetry_segments (segment_id) WHERE NOT counted;

-- Opens a segment whose rows have the time of their arrival and are counted later. `received`: milliseconds since 1970 by the
-- database's clock as the writer knows it; never falls from flush to flush.
CREATE FUNCTION telemetry_open_hot_segment(writer uuid) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  segment int8 := telemetry_open_segment(writer);
BEGIN
  EXECUTE format('ALTER TABLE telemetry_segment_%s ADD COLUMN received int8', segment);
  UPDATE telemetry_segments SET counted = false WHERE segment_id = segment;
  RETURN segment;
END
$$;

-- Adds the points of a segment to telemetry_usage.
CREATE FUNCTION telemetry_count_segment(segment int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE telemetry_segments SET counted = true WHERE segment_id = segment AND NOT counted;
  IF FOUND THEN
    EXECUTE format(
      'INSERT INTO telemetry_usage AS held (tenant_id, device_id, accepted, stored_bytes)
       SELECT tenant_id, device_id, count(*), sum(octet_length(payload) + 32) FROM telemetry_segment_%s
       GROUP BY tenant_id, device_id ORDER BY tenant_id, device_id
       ON CONFLICT (tenant_id, device_id) DO UPDATE SET accepted = held.accepted + excluded.accepted,
         stored_bytes = held.stored_bytes + excluded.stored_bytes', segment);
  END IF;
END
$$;

-- Returns what the current tenant has stored in segments that are not counted yet, in all or from one device. Runs with the
-- rights of its owner, because a tenant has none on segments, and reads the rows of that tenant alone.
CREATE FUNCTION telemetry_uncounted_usage(device uuid, OUT accepted int8, OUT stored_bytes int8)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  segments text;
BEGIN
  SELECT string_agg(format('SELECT tenant_id, device_id, payload FROM telemetry_segment_%s', segment_id), ' UNION ALL ')
    INTO segments FROM telemetry_segments WHERE NOT counted;
  accepted := 0;
  stored_bytes := 0;
  IF segments IS NOT NULL THEN
    EXECUTE format(
      'SELECT count(*), coalesce(sum(octet_length(payload) + 32), 0) FROM (%s) AS points
       WHERE tenant_id = $1 AND ($2 IS NULL OR device_id = $2)', segments)
      INTO accepted, stored_bytes USING kellet_tenant_id(), device;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION telemetry_uncounted_usage FROM PUBLIC;
GRANT EXECUTE ON FUNCTION telemetry_uncounted_usage TO kellet_tenant;

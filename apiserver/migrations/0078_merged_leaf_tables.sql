-- The index of leaves outlives the points: each segment that turns cold leaves a table behind. Some of these are merged into one
-- from time to time, because every look-up searches all of them.

-- Whether leaf_index_N exists. False: its rows are in the table of a later segment.
ALTER TABLE telemetry_segments ADD COLUMN has_leaves boolean NOT NULL DEFAULT true;
-- The leaves in leaf_index_N, once others were merged into it.
ALTER TABLE telemetry_segments ADD COLUMN leaves int8;
CREATE INDEX telemetry_segments_cold_leaves ON telemetry_segments (segment_id) WHERE state = 'cold' AND has_leaves;

-- Merges the tables of leaves of cold segments into that of the last one. Readers go on with the old tables until the end. Throws
-- lock_not_available if a reader holds one of them for long. The caller holds coldLock, so that nothing else moves or purges
-- rows of cold segments.
CREATE FUNCTION telemetry_merge_leaves(segments int8[]) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  target int8 := (SELECT max(segment) FROM unnest(segments) AS s (segment));
  -- The new table, until it takes the place of the old ones.
  growing text := format('leaf_index_merged_%s', target);
  merged int8 := 0;
  added int8;
  segment int8;
BEGIN
  EXECUTE format('CREATE TABLE %I (LIKE leaf_index) WITH (autovacuum_enabled = false)', growing);
  FOREACH segment IN ARRAY segments LOOP
    EXECUTE format('INSERT INTO %I SELECT tenant_id, prefix, batch_id, leaf_index, device_id FROM leaf_index_%s', growing, segment);
    GET DIAGNOSTICS added = ROW_COUNT;
    merged := merged + added;
  END LOOP;
  EXECUTE format('CREATE INDEX ON %I (tenant_id, prefix)', growing);
  EXECUTE format('CREATE INDEX ON %I (tenant_id, device_id)', growing);
  EXECUTE format('ANALYZE %I', growing);
  -- From here on readers wait, for a moment.
  FOR attempt IN 1 .. 40 LOOP
    BEGIN
      PERFORM set_config('lock_timeout', '250ms', true);
      FOREACH segment IN ARRAY segments LOOP
        EXECUTE format('DROP TABLE leaf_index_%s', segment);
      END LOOP;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      -- What was locked is free again.
      IF attempt = 40 THEN
        RAISE;
      END IF;
      PERFORM pg_sleep(random() / 2);
    END;
  END LOOP;
  EXECUTE format('ALTER TABLE %I RENAME TO leaf_index_%s', growing, target);
  EXECUTE format('ALTER TABLE leaf_index_%s INHERIT leaf_index', target);
  EXECUTE format('GRANT INSERT ON leaf_index_%s TO kellet_ingest', target);
  EXECUTE format('GRANT SELECT ON leaf_index_%s TO kellet_maintenance', target);
  UPDATE telemetry_segments SET has_leaves = segment_id = target, leaves = CASE segment_id WHEN target THEN merged END
    WHERE segment_id = ANY (segments);
  RETURN merged;
END
$$;
REVOKE ALL ON FUNCTION telemetry_merge_leaves FROM PUBLIC;

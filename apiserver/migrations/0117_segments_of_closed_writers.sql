-- A writer that was taken over opens no more segments, which nobody would complete: opening waits for who takes it over, or the
-- other way round, and is then refused like a flush (KL001).
CREATE OR REPLACE FUNCTION telemetry_open_hot_segment(writer uuid) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  found_epoch int4;
  segment int8;
BEGIN
  SELECT epoch INTO found_epoch FROM telemetry_writers WHERE writer_id = writer FOR SHARE;
  IF found_epoch <> 0 THEN
    RAISE EXCEPTION 'writer % was taken over', writer USING ERRCODE = 'KL001';
  END IF;
  segment := telemetry_open_segment(writer);
  EXECUTE format('ALTER TABLE telemetry_segment_%s ADD COLUMN received int8', segment);
  UPDATE telemetry_segments SET counted = false WHERE segment_id = segment;
  RETURN segment;
END
$$;

-- Those that were left open before are completed by who takes their writers over again.
UPDATE telemetry_writers w SET closed_at = NULL WHERE closed_at IS NOT NULL AND epoch > 0
  AND EXISTS (SELECT FROM telemetry_segments s WHERE s.writer_id = w.writer_id AND s.state = 'open');

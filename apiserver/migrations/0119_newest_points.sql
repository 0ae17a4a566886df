-- The newest point of a device is stored beside the document of its latest values, so that the next one with the same names
-- replaces it without anything being read. Old processes write the document alone; the newest of both counts.
ALTER TABLE telemetry_latest
  ALTER COLUMN document SET DEFAULT '{"time": "-1", "numeric": {}, "string": {}}',
  -- Identifies the names of the newest point's values.
  ADD COLUMN names uuid,
  -- Nanoseconds since 1970.
  ADD COLUMN time int8,
  ADD COLUMN payload text;
COMMENT ON COLUMN telemetry_latest.document IS 'values that the newest point does not have';

-- Both tables have a few updates of every row and hour. With room for the next version in its page, a row is written without new
-- entries in the indexes, of which devices has ten. Applies to pages that are filled from now on.
ALTER TABLE telemetry_latest SET (fillfactor = 50);
ALTER TABLE devices SET (fillfactor = 50);

-- What is needed to seal the open batches of a dead writer at a cost that depends on their points alone, however long they stay open
-- and however much is written meanwhile.

-- Leaves of open batches in complete segments. Written by maintenance once a segment has been complete for a minute, if a batch with
-- points in it is still open; deleted some time after the batch was sealed. A leaf may be here twice.
CREATE TABLE open_batch_leaves (
  batch_id uuid NOT NULL REFERENCES anchor_batches ON DELETE CASCADE,
  segment_id int8 NOT NULL,
  leaf_indexes int4[] NOT NULL,
  -- 32 bytes a leaf, and its device, in the order of leaf_indexes.
  leaves bytea NOT NULL,
  devices uuid[] NOT NULL,
  PRIMARY KEY (batch_id, segment_id)
);
ALTER TABLE open_batch_leaves ALTER COLUMN leaves SET STORAGE EXTERNAL;

-- Chain mode: the segments that a flush added to a batch that was open before and still is, in the form of anchor_batches.segments,
-- which has those of the first flush while the batch is open, and all of them once it is sealed.
CREATE TABLE open_batch_segments (
  batch_id uuid NOT NULL REFERENCES anchor_batches ON DELETE CASCADE,
  first_leaf int4 NOT NULL,
  segments jsonb NOT NULL,
  PRIMARY KEY (batch_id, first_leaf)
);
GRANT SELECT, INSERT, DELETE ON open_batch_segments TO kellet_ingest;
GRANT SELECT ON open_batch_leaves, open_batch_segments TO kellet_maintenance;

-- Rows come and go.
ALTER TABLE open_batch_leaves SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE open_batch_segments SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Whether open_batch_leaves has the leaves of all batches that were open when the segment was completed, or these batches are sealed.
ALTER TABLE telemetry_segments ADD COLUMN recorded boolean NOT NULL DEFAULT false;
CREATE INDEX telemetry_segments_unrecorded ON telemetry_segments (segment_id)
  WHERE NOT recorded AND state IN ('sealed', 'indexed');

-- A process of an earlier version closes a writer first and seals its batches afterwards, without open_batch_segments: it must leave
-- that to one that knows them. (Those that do close a writer last.)
CREATE FUNCTION telemetry_check_closed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM anchor_batches JOIN open_batch_segments USING (batch_id)
             WHERE writer_id = NEW.writer_id AND status = 'open') THEN
    RAISE EXCEPTION 'writer % has open batches', NEW.writer_id;
  END IF;
  RETURN NEW;
END
$$;
CREATE TRIGGER check_closed BEFORE UPDATE OF closed_at ON telemetry_writers FOR EACH ROW
  WHEN (NEW.closed_at IS NOT NULL) EXECUTE FUNCTION telemetry_check_closed();

-- So batches may stay open for longer.
ALTER TABLE tenants DROP CONSTRAINT tenants_batch_seconds_check;
ALTER TABLE tenants ADD CONSTRAINT tenants_batch_seconds_check CHECK (batch_seconds BETWEEN 0 AND 3600);

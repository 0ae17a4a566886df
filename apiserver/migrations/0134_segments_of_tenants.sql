-- Which hot segments have points of a tenant, so that its purge reads no others: points are found by their device alone.

-- The points of a tenant in an indexed segment. Written in the transaction that indexes the segment; nothing adds points to it later.
-- Trusted for: that a segment with `tenants_recorded` has no points of other tenants.
CREATE TABLE telemetry_tenant_segments (
  tenant_id text NOT NULL,
  segment_id int8 NOT NULL,
  points int8 NOT NULL,
  PRIMARY KEY (tenant_id, segment_id)
);
CREATE INDEX telemetry_tenant_segments_by_segment ON telemetry_tenant_segments (segment_id);
ALTER TABLE telemetry_tenant_segments SET (autovacuum_vacuum_scale_factor = 0.02);

-- False in segments that a process of an earlier version has indexed: a purge reads these.
ALTER TABLE telemetry_segments ADD COLUMN tenants_recorded boolean NOT NULL DEFAULT false;
CREATE INDEX telemetry_segments_without_tenants ON telemetry_segments (segment_id)
  WHERE state = 'indexed' AND NOT tenants_recorded;

-- A trigger, because a process of an earlier version may drop the segment.
CREATE FUNCTION forget_tenants_of_segment() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM telemetry_tenant_segments WHERE segment_id = NEW.segment_id;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION forget_tenants_of_segment FROM PUBLIC;
CREATE TRIGGER tenants_forgotten AFTER UPDATE OF state ON telemetry_segments FOR EACH ROW
  WHEN (NEW.state = 'cold') EXECUTE FUNCTION forget_tenants_of_segment();

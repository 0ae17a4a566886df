-- Name and hardware id were indexed for themselves, so a search read two lists for each three characters and the entries of new rows
-- twice. Now they are one text. A pattern that spans both, which has the line feed between them, matches neither and is sorted out.
DROP FUNCTION device_search(text, int4);
DROP INDEX devices_by_text;
CREATE INDEX devices_by_text ON devices USING gin ((name || E'\n' || hardware_id) gin_trgm_ops, tenant_id)
  WITH (gin_pending_list_limit = 256) WHERE deleted_at IS NULL;

CREATE OR REPLACE FUNCTION device_search(part text, pattern text, most int4) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET enable_indexscan = off SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY EXECUTE 'SELECT device_id FROM devices
    WHERE tenant_id = $1 AND deleted_at IS NULL AND (name || E''\n'' || hardware_id) ILIKE $2
      AND (name ILIKE $3 OR hardware_id ILIKE $3) LIMIT $4'
    USING kellet_tenant_id(), part, pattern, most;
END
$$;

-- The search for a part of a device's name or hardware id.

CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE EXTENSION IF NOT EXISTS btree_gin;
CREATE INDEX devices_by_text ON devices USING gin (tenant_id, name gin_trgm_ops, hardware_id gin_trgm_ops)
  WHERE deleted_at IS NULL;

-- Returns at most this many devices of the current tenant whose name or hardware id is like the pattern, along the index:
-- the cost grows with their number, not with the fleet. Runs with the rights of its owner, because row-level security allows
-- no index for a condition that could reveal rows.
CREATE FUNCTION device_search(pattern text, most int4) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET enable_indexscan = off SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY EXECUTE 'SELECT device_id FROM devices
    WHERE tenant_id = $1 AND deleted_at IS NULL AND (name ILIKE $2 OR hardware_id ILIKE $2) LIMIT $3'
    USING kellet_tenant_id(), pattern, most;
END
$$;
REVOKE ALL ON FUNCTION device_search FROM PUBLIC;
GRANT EXECUTE ON FUNCTION device_search TO kellet_tenant;

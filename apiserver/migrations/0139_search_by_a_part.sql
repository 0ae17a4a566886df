-- A search reads a list of the index for each three characters of the text, and lists grow with the fleet. So it looks for a part of
-- the text there, and for the whole text among the devices found. Processes of an earlier version call the function with two arguments.
CREATE FUNCTION device_search(part text, pattern text, most int4) RETURNS SETOF uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET enable_indexscan = off SET search_path FROM CURRENT AS $$
BEGIN
  -- The index does not serve expressions.
  RETURN QUERY EXECUTE 'SELECT device_id FROM devices
    WHERE tenant_id = $1 AND deleted_at IS NULL AND (name ILIKE $2 OR hardware_id ILIKE $2)
      AND (name || '''' ILIKE $3 OR hardware_id || '''' ILIKE $3) LIMIT $4'
    USING kellet_tenant_id(), part, pattern, most;
END
$$;
REVOKE ALL ON FUNCTION device_search(text, text, int4) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION device_search(text, text, int4) TO kellet_tenant;

-- The number of proven leaves of each tenant, which lists of proofs show, without reading all batches.

CREATE TABLE proven_leaves (
  tenant_id text NOT NULL,
  -- 0 to 15: changes, in parts that concurrent transactions rarely share. -1: the leaves of batches that were proven before there was
  -- a trigger; there is no such row until they have been counted for the first time.
  part int2 NOT NULL,
  leaves int8 NOT NULL,
  PRIMARY KEY (tenant_id, part)
) WITH (fillfactor = 50);
SELECT kellet_isolate('proven_leaves', 'SELECT');

-- A trigger, so that processes of an earlier version count too.
CREATE FUNCTION count_proven_leaves() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO proven_leaves AS held (tenant_id, part, leaves)
    VALUES (NEW.tenant_id, pg_backend_pid() % 16,
      CASE NEW.status WHEN 'confirmed' THEN 1 ELSE -1 END * coalesce(octet_length(NEW.leaves), 0) / 32)
    ON CONFLICT (tenant_id, part) DO UPDATE SET leaves = held.leaves + excluded.leaves;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_proven_leaves FROM PUBLIC;
CREATE TRIGGER proven_leaves_changed AFTER UPDATE OF status ON anchor_batches FOR EACH ROW
  WHEN ((OLD.status = 'confirmed') <> (NEW.status = 'confirmed')) EXECUTE FUNCTION count_proven_leaves();

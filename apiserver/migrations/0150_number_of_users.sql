-- The number of users of a tenant is kept too (0141_kept_numbers.sql), and the keys of service accounts that have ended are found by
-- their time.

-- Users of no tenant, platform administrators, are not counted.
CREATE OR REPLACE FUNCTION count_added_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, TG_TABLE_NAME, kellet_no_id(), count(*))
    FROM added WHERE tenant_id IS NOT NULL GROUP BY tenant_id;
  RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION count_removed_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, TG_TABLE_NAME, kellet_no_id(), -count(*))
    FROM removed WHERE tenant_id IS NOT NULL GROUP BY tenant_id;
  RETURN NULL;
END
$$;

CREATE TRIGGER rows_added AFTER INSERT ON users
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_added_rows();
CREATE TRIGGER rows_removed AFTER DELETE ON users
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION count_removed_rows();
INSERT INTO kept_sums (tenant_id, kind, owner_id, amount)
  SELECT tenant_id, 'users', kellet_no_id(), count(*) FROM users WHERE tenant_id IS NOT NULL GROUP BY tenant_id;

CREATE INDEX api_keys_ended_of_services ON api_keys (least(revoked_at, expires_at))
  WHERE device_id IS NULL AND least(revoked_at, expires_at) IS NOT NULL;

-- The numbers of what a tenant may have many of, for their limits (0140_kept_sums.sql).

CREATE FUNCTION count_added_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, TG_TABLE_NAME, kellet_no_id(), count(*)) FROM added GROUP BY tenant_id;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_added_rows FROM PUBLIC;

CREATE FUNCTION count_removed_rows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, TG_TABLE_NAME, kellet_no_id(), -count(*)) FROM removed GROUP BY tenant_id;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_removed_rows FROM PUBLIC;

-- The triggers lock out writers until the end of this transaction, so that each row is counted once.
DO $$
DECLARE
  counted text;
BEGIN
  FOREACH counted IN ARRAY ARRAY['alarms', 'assets', 'customers', 'device_groups', 'entity_views'] LOOP
    EXECUTE format('CREATE TRIGGER rows_added AFTER INSERT ON %I
      REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_added_rows()', counted);
    EXECUTE format('CREATE TRIGGER rows_removed AFTER DELETE ON %I
      REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION count_removed_rows()', counted);
    EXECUTE format('INSERT INTO kept_sums (tenant_id, kind, owner_id, amount)
      SELECT tenant_id, %1$L, kellet_no_id(), count(*) FROM %1$I GROUP BY tenant_id', counted);
  END LOOP;
END
$$;

-- The usage of a tenant is the sum of that of its devices. Kept beside them, so that reading it does not cost a row for each device.

-- Two rows a tenant, so that all transactions lock them in the same order: part 0 has what was added to telemetry_usage with new
-- rows, part 1 what was added to existing ones.
CREATE TABLE telemetry_tenant_usage (
  tenant_id text NOT NULL,
  part int2 NOT NULL,
  accepted int8 NOT NULL,
  rejected int8 NOT NULL,
  stored_bytes int8 NOT NULL,
  PRIMARY KEY (tenant_id, part)
) WITH (fillfactor = 50);
SELECT kellet_isolate('telemetry_tenant_usage', 'SELECT');

-- Triggers, so that processes of an earlier version count too. They run once for a statement, after it has locked its rows of
-- telemetry_usage. Only a purge deletes these, and it deletes the sums as well.
CREATE FUNCTION sum_added_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO telemetry_tenant_usage AS held (tenant_id, part, accepted, rejected, stored_bytes)
    SELECT tenant_id, 0, sum(accepted), sum(rejected), sum(stored_bytes) FROM added GROUP BY tenant_id ORDER BY tenant_id
    ON CONFLICT (tenant_id, part) DO UPDATE SET accepted = held.accepted + excluded.accepted,
      rejected = held.rejected + excluded.rejected, stored_bytes = held.stored_bytes + excluded.stored_bytes;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION sum_added_usage FROM PUBLIC;

CREATE FUNCTION sum_changed_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO telemetry_tenant_usage AS held (tenant_id, part, accepted, rejected, stored_bytes)
    SELECT tenant_id, 1, sum(accepted), sum(rejected), sum(stored_bytes)
    FROM (SELECT tenant_id, accepted, rejected, stored_bytes FROM after
          UNION ALL SELECT tenant_id, -accepted, -rejected, -stored_bytes FROM before) AS changed
    GROUP BY tenant_id ORDER BY tenant_id
    ON CONFLICT (tenant_id, part) DO UPDATE SET accepted = held.accepted + excluded.accepted,
      rejected = held.rejected + excluded.rejected, stored_bytes = held.stored_bytes + excluded.stored_bytes;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION sum_changed_usage FROM PUBLIC;

CREATE TRIGGER usage_added AFTER INSERT ON telemetry_usage
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION sum_added_usage();
CREATE TRIGGER usage_changed AFTER UPDATE ON telemetry_usage
  REFERENCING OLD TABLE AS before NEW TABLE AS after FOR EACH STATEMENT EXECUTE FUNCTION sum_changed_usage();

-- The triggers above lock out all writers until the end of this transaction.
INSERT INTO telemetry_tenant_usage (tenant_id, part, accepted, rejected, stored_bytes)
  SELECT tenant_id, 0, sum(accepted), sum(rejected), sum(stored_bytes) FROM telemetry_usage GROUP BY tenant_id;

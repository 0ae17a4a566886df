-- Sums that limits are compared with, kept beside the rows that they are of, so that no limit counts or adds up rows.

-- Trusted for: the sum of all parts. A sum has as many parts as transactions have changed it at a time: each takes one that no other
-- holds, so nobody waits for it, and no two transactions can deadlock over it.
CREATE TABLE kept_sums (
  tenant_id text NOT NULL,
  -- What is added up: the name of a table is the number of its rows.
  kind text NOT NULL,
  -- What of the tenant it belongs to. Zeros: the tenant.
  owner_id uuid NOT NULL,
  part int8 GENERATED ALWAYS AS IDENTITY,
  amount int8 NOT NULL,
  PRIMARY KEY (tenant_id, kind, owner_id, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
SELECT kellet_isolate('kept_sums', 'SELECT');

CREATE FUNCTION kept_sum(tenant text, of_kind text, owner uuid) RETURNS int8 LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(amount), 0)::int8 FROM kept_sums WHERE tenant_id = tenant AND kind = of_kind AND owner_id = owner
$$;

CREATE FUNCTION add_to_kept_sum(tenant text, of_kind text, owner uuid, added int8) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE kept_sums SET amount = amount + added WHERE tenant_id = tenant AND kind = of_kind AND owner_id = owner AND part = (
    SELECT part FROM kept_sums WHERE tenant_id = tenant AND kind = of_kind AND owner_id = owner LIMIT 1 FOR UPDATE SKIP LOCKED);
  IF FOUND THEN RETURN; END IF;
  -- Rows that are removed with their tenant add no part after the sums were removed.
  INSERT INTO kept_sums (tenant_id, kind, owner_id, amount) SELECT tenant, of_kind, owner, added
    WHERE added > 0 OR EXISTS (SELECT FROM kept_sums WHERE tenant_id = tenant AND kind = of_kind AND owner_id = owner);
END
$$;
REVOKE ALL ON FUNCTION add_to_kept_sum FROM PUBLIC;

-- The bytes that a delivery takes, with what the row and its entries in indexes take. NULL: it was added by an earlier version, and is
-- not in the sum.
ALTER TABLE webhook_deliveries ADD COLUMN bytes int4;

-- The most bytes of deliveries that are kept, finished ones included: 64 MiB for a webhook, and 256 MiB for a tenant, of which each of
-- its 20 webhooks may use a twentieth whatever others use.
CREATE FUNCTION webhook_is_full(tenant text, webhook uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN own < 256 * 1024 * 1024 / 20 THEN false
    WHEN own >= 64 * 1024 * 1024 THEN true
    ELSE (SELECT sum(amount) FROM kept_sums WHERE tenant_id = tenant AND kind = 'webhook_bytes') >= 256 * 1024 * 1024
  END FROM (SELECT kept_sum(tenant, 'webhook_bytes', webhook) AS own) AS held
$$;

CREATE OR REPLACE FUNCTION deliver_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO webhook_deliveries (tenant_id, webhook_id, event_id, subject, event, bytes, next_at)
    SELECT i.tenant_id, w.webhook_id, i.event_id, event_name(i.subject, i.tenant_id), i.payload, octet_length(i.payload) + 300,
      i.not_before
    FROM inserted i JOIN webhooks w ON w.tenant_id = i.tenant_id
    WHERE w.enabled AND NOT w.is_full AND w.events && ARRAY['*', event_name(i.subject, i.tenant_id)]
    ORDER BY i.position;
  RETURN NULL;
END
$$;

CREATE FUNCTION add_webhook_bytes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, 'webhook_bytes', webhook_id, sum(bytes))
    FROM added WHERE bytes IS NOT NULL GROUP BY tenant_id, webhook_id;
  -- Another transaction that changes the webhook finds it full with the next event.
  UPDATE webhooks w SET is_full = true, last_error = 'too many events wait: new ones are dropped'
    WHERE (tenant_id, webhook_id) IN (
      SELECT f.tenant_id, f.webhook_id FROM webhooks f JOIN (SELECT DISTINCT tenant_id, webhook_id FROM added) AS a
        USING (tenant_id, webhook_id)
      WHERE NOT f.is_full AND webhook_is_full(f.tenant_id, f.webhook_id) FOR NO KEY UPDATE OF f SKIP LOCKED);
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION add_webhook_bytes FROM PUBLIC;
CREATE TRIGGER webhook_bytes_added AFTER INSERT ON webhook_deliveries
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION add_webhook_bytes();

CREATE FUNCTION subtract_webhook_bytes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM add_to_kept_sum(tenant_id, 'webhook_bytes', webhook_id, -sum(bytes))
    FROM removed WHERE bytes IS NOT NULL GROUP BY tenant_id, webhook_id;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION subtract_webhook_bytes FROM PUBLIC;
CREATE TRIGGER webhook_bytes_removed AFTER DELETE ON webhook_deliveries
  REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION subtract_webhook_bytes();

-- Nothing is left of a sum whose webhook is deleted.
CREATE FUNCTION remove_webhook_bytes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM kept_sums WHERE tenant_id = OLD.tenant_id AND kind = 'webhook_bytes' AND owner_id = OLD.webhook_id;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION remove_webhook_bytes FROM PUBLIC;
-- Its name comes after those of the triggers that delete the deliveries.
CREATE TRIGGER webhook_bytes_ended AFTER DELETE ON webhooks FOR EACH ROW EXECUTE FUNCTION remove_webhook_bytes();

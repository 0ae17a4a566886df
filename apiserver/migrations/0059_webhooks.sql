-- Webhooks: servers that get the events of a tenant, and the events on their way to them.

-- Trusted for: which events a tenant wants to have sent, and where.
CREATE TABLE webhooks (
  tenant_id text NOT NULL REFERENCES tenants,
  webhook_id uuid NOT NULL,
  url text NOT NULL,
  -- Sealed with a key that the database does not have.
  secret text NOT NULL,
  -- Subjects without tenant and resource, such as alarm.raised; '*': all.
  events text[] NOT NULL,
  enabled boolean NOT NULL DEFAULT true,
  -- Whether so many events wait that further ones are dropped.
  is_full boolean NOT NULL DEFAULT false,
  -- Of the last attempt; empty if it succeeded.
  last_error text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, webhook_id)
);
SELECT kellet_isolate('webhooks');

-- Trusted for: every event that a webhook is still to get, and for some time those that it got or that were given up.
CREATE TABLE webhook_deliveries (
  tenant_id text NOT NULL,
  webhook_id uuid NOT NULL,
  -- In order of the events.
  position int8 GENERATED ALWAYS AS IDENTITY,
  delivery_id uuid NOT NULL DEFAULT gen_random_uuid(),
  event_id uuid NOT NULL,
  subject text NOT NULL,
  -- The CloudEvent.
  event text NOT NULL,
  status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'delivered', 'dead')),
  attempts int4 NOT NULL DEFAULT 0,
  -- HTTP status of the last response; 0 if there was none.
  last_status int4 NOT NULL DEFAULT 0,
  -- NULL: there is no next attempt.
  next_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  PRIMARY KEY (tenant_id, webhook_id, position),
  UNIQUE (tenant_id, delivery_id),
  FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhooks ON DELETE CASCADE
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (tenant_id, webhook_id, next_at) WHERE status = 'pending';
CREATE INDEX webhook_deliveries_finished ON webhook_deliveries (finished_at) WHERE finished_at IS NOT NULL;
SELECT kellet_isolate('webhook_deliveries', 'SELECT, UPDATE');

-- Returns the subject of an event without tenant and resource, which are the last two of four or more words.
CREATE FUNCTION event_name(subject text, tenant text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN split_part(subject, '.', -2) = tenant AND split_part(subject, '.', 4) <> ''
    THEN regexp_replace(subject, '\.[^.]*\.[^.]*$', '') ELSE subject END
$$;

-- A trigger, so that an event and its deliveries are recorded by the same transaction, whoever causes it.
CREATE FUNCTION deliver_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO webhook_deliveries (tenant_id, webhook_id, event_id, subject, event, next_at)
    SELECT i.tenant_id, w.webhook_id, i.event_id, event_name(i.subject, i.tenant_id), i.payload, i.not_before
    FROM inserted i JOIN webhooks w ON w.tenant_id = i.tenant_id
    WHERE w.enabled AND NOT w.is_full AND w.events && ARRAY['*', event_name(i.subject, i.tenant_id)]
    ORDER BY i.position;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION deliver_events FROM PUBLIC;
CREATE TRIGGER webhook_deliveries AFTER INSERT ON outbox
  REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT EXECUTE FUNCTION deliver_events();

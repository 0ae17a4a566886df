-- The audit log: a chain of events for each tenant, and one of the platform, whose tenant_id is empty.

-- Trusted for: every event that was acknowledged and is not in the chain yet. Rows are only added and taken, so that calls
-- do not wait for each other.
CREATE TABLE audit_pending (
  position int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  event_id uuid NOT NULL,
  time timestamptz(3) NOT NULL,
  actor_kind text NOT NULL,
  actor_id text NOT NULL,
  actor_name text NOT NULL,
  action text NOT NULL,
  resource_kind text NOT NULL,
  resource_id text NOT NULL,
  result text NOT NULL,
  address text NOT NULL,
  user_agent text NOT NULL,
  request_id text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX audit_pending_by_tenant ON audit_pending (tenant_id);
SELECT kellet_isolate('audit_pending', 'INSERT');

-- Trusted for: who did what. Rows are only added, and after the retention removed from the beginning of the chain.
CREATE TABLE audit_events (
  tenant_id text NOT NULL,
  -- From 1 without a gap.
  sequence int4 NOT NULL,
  event_id uuid NOT NULL,
  time timestamptz(3) NOT NULL,
  actor_kind text NOT NULL,
  actor_id text NOT NULL,
  actor_name text NOT NULL,
  action text NOT NULL,
  resource_kind text NOT NULL,
  resource_id text NOT NULL,
  result text NOT NULL,
  address text NOT NULL,
  user_agent text NOT NULL,
  request_id text NOT NULL,
  previous_hash bytea NOT NULL,
  -- SHA-256 of the canonical JSON of the event as the API shows it, without this field.
  hash bytea NOT NULL,
  PRIMARY KEY (tenant_id, sequence),
  -- An event whose first write had an unknown outcome may be written twice; it gets one place.
  UNIQUE (tenant_id, event_id)
);
CREATE INDEX audit_events_by_time ON audit_events (tenant_id, time, sequence);
CREATE INDEX audit_events_by_actor ON audit_events (tenant_id, actor_id, time, sequence);
CREATE INDEX audit_events_by_action ON audit_events (tenant_id, action, time, sequence);
CREATE INDEX audit_events_by_resource ON audit_events (tenant_id, resource_id, time, sequence);
CREATE INDEX audit_events_by_result ON audit_events (tenant_id, result, time, sequence);
SELECT kellet_isolate('audit_events', 'SELECT');

-- Refuses to change the log, whoever asks. Rows can be deleted by a transaction that has said why:
--   SET LOCAL kellet.audit_removal = 'retention'   the oldest events, after KELLET_AUDIT_RETENTION_DAYS
--   SET LOCAL kellet.audit_removal = 'purge'       everything of a tenant that is purged
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('kellet.audit_removal', true) IN ('retention', 'purge') THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'audit events are append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_events_append_only BEFORE UPDATE OR DELETE ON audit_events
  FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_events_not_truncated BEFORE TRUNCATE ON audit_events
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();

-- Trusted for: where each chain ends, also when all its events are older than the retention.
CREATE TABLE audit_heads (
  tenant_id text PRIMARY KEY,
  sequence int4 NOT NULL,
  hash bytea NOT NULL,
  -- The last event whose hash was anchored; 0 if none.
  anchored_sequence int4 NOT NULL DEFAULT 0,
  anchored_at timestamptz
) WITH (fillfactor = 50);
CREATE INDEX audit_heads_to_anchor ON audit_heads (anchored_at NULLS FIRST)
  WHERE sequence > anchored_sequence AND tenant_id <> '';
SELECT kellet_isolate('audit_heads', 'SELECT');

-- Trusted for: which events were anchored, and by which leaf. Like the leaves, they stay as long as the tenant.
CREATE TABLE audit_anchors (
  tenant_id text NOT NULL,
  sequence int4 NOT NULL,
  hash bytea NOT NULL,
  data_hash bytea NOT NULL,
  time timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, sequence)
);
SELECT kellet_isolate('audit_anchors', 'SELECT');

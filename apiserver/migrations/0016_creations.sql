-- A creation is committed before its deadline or not at all: a caller who was told that nothing was made must not find it later.

-- Ends the transaction's statements, and the transaction itself, at the deadline, whatever becomes of the process behind it.
-- transaction_timeout exists since PostgreSQL 17; before, the trigger below alone bounds many short statements.
CREATE FUNCTION kellet_end_by(deadline timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  remaining int8 := greatest(1, ceil(extract(epoch FROM deadline - clock_timestamp()) * 1000));
BEGIN
  PERFORM set_config('statement_timeout', remaining::text, true),
          set_config('idle_in_transaction_session_timeout', remaining::text, true);
  IF current_setting('transaction_timeout', true) IS NOT NULL THEN
    -- A little later, so that a statement still running fails with an error of its own.
    PERFORM set_config('transaction_timeout', (remaining + 200)::text, true);
  END IF;
END
$$;

CREATE FUNCTION kellet_refuse_late_creation() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.deadline <= clock_timestamp() THEN
    RAISE EXCEPTION 'the creation has passed its deadline' USING ERRCODE = 'query_canceled';
  END IF;
  RETURN NULL;
END
$$;
-- Deferred: runs as part of COMMIT.
CREATE CONSTRAINT TRIGGER resource_intents_in_time AFTER UPDATE ON resource_intents
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state = 'active')
  EXECUTE FUNCTION kellet_refuse_late_creation();

-- The creation of a tenant is an intent too, and comes before the tenant's row.
ALTER TABLE resource_intents DROP CONSTRAINT resource_intents_tenant_id_fkey;

-- A resource may still arrive in the cluster after its creation was cancelled: the sweep looks again for a while.
CREATE INDEX resource_intents_cancelled ON resource_intents (settled_at) WHERE state = 'cancelled';

-- Rules: their definitions, the points they are still to be evaluated for, their state per device, and pending actions.

-- Trusted for: the rules of a tenant.
CREATE TABLE rules (
  tenant_id text NOT NULL REFERENCES tenants,
  rule_id uuid NOT NULL,
  name text NOT NULL,
  expression text NOT NULL,
  -- NULL: any profile, any group.
  profile_id uuid,
  device_group_id uuid,
  -- NULL: indeterminate.
  severity text CHECK (severity IN ('critical', 'major', 'minor', 'warning', 'indeterminate')),
  alarm_type text NOT NULL,
  clear_expression text NOT NULL DEFAULT '',
  for_seconds int4 NOT NULL DEFAULT 0,
  cooldown_seconds int4 NOT NULL DEFAULT 0,
  -- [{"kind": "webhook", "url", "secret" (sealed)} or {"kind": "rpc", "method", "params"}].
  actions jsonb NOT NULL DEFAULT '[]',
  enabled boolean NOT NULL DEFAULT true,
  -- Raised when what is evaluated changes: states of an earlier version do not count.
  version int4 NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  -- A deleted rule's row stays until its states have been removed.
  deleted_at timestamptz,
  PRIMARY KEY (tenant_id, rule_id)
);
CREATE UNIQUE INDEX rules_by_name ON rules (tenant_id, name) WHERE deleted_at IS NULL;
CREATE INDEX rules_deleted ON rules (deleted_at) WHERE deleted_at IS NOT NULL;
SELECT kellet_isolate('rules');

-- What evaluations and actions report about a rule, apart from its definition, so that neither waits for the other.
CREATE TABLE rule_reports (
  tenant_id text NOT NULL,
  rule_id uuid NOT NULL,
  matches float8 NOT NULL DEFAULT 0,
  -- Of the last evaluation and of the last action; empty if it succeeded.
  evaluation_error text NOT NULL DEFAULT '',
  action_error text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant_id, rule_id),
  FOREIGN KEY (tenant_id, rule_id) REFERENCES rules ON DELETE CASCADE
) WITH (fillfactor = 50);
SELECT kellet_isolate('rule_reports');

-- Raised by every change of a tenant's rules, in the same transaction.
CREATE TABLE rule_revisions (
  tenant_id text PRIMARY KEY,
  revision int8 NOT NULL
);
SELECT kellet_isolate('rule_revisions', 'SELECT, INSERT, UPDATE');

-- Points of tenants with rules, written by the flush that commits them and deleted by the transaction that evaluates them.
-- Trusted for: every committed point that rules are still to see.
CREATE TABLE rule_points (
  tenant_id text NOT NULL,
  position int8 GENERATED ALWAYS AS IDENTITY,
  -- [["device_id", "nanoseconds", {payload}], …], compressed with zstd by the writer.
  points bytea NOT NULL,
  added_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, position)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE rule_points ALTER COLUMN points SET STORAGE EXTERNAL;
SELECT kellet_isolate('rule_points', 'SELECT, DELETE');

-- A flush that contains points of a tenant ends with KL004 unless the writer knows the tenant's current rules, and so whether
-- they have to see its points.
CREATE FUNCTION rules_fence(tenants text[], revisions int8[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM unnest(tenants, revisions) AS known (tenant, revision)
    LEFT JOIN rule_revisions r ON r.tenant_id = known.tenant
    WHERE coalesce(r.revision, 0) <> known.revision;
  IF FOUND THEN
    RAISE EXCEPTION 'the rules of a tenant have changed' USING ERRCODE = 'KL004';
  END IF;
END
$$;
GRANT SELECT ON rule_revisions TO kellet_ingest;
GRANT INSERT ON rule_points TO kellet_ingest;
CREATE POLICY ingest ON rule_revisions FOR SELECT TO kellet_ingest USING (true);
CREATE POLICY ingest ON rule_points FOR INSERT TO kellet_ingest WITH CHECK (true);

-- The last evaluated point of each device: later points are evaluated against it, earlier ones not at all.
CREATE TABLE rule_last_points (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  -- Nanoseconds since 1970.
  time int8 NOT NULL,
  payload text NOT NULL,
  PRIMARY KEY (tenant_id, device_id)
) WITH (fillfactor = 70);
SELECT kellet_isolate('rule_last_points');

-- The state of rules for devices that have matched.
CREATE TABLE rule_states (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  rule_id uuid NOT NULL,
  -- Of the rule.
  version int4 NOT NULL,
  -- Time of the first point, in nanoseconds, since which the expression holds without a break; NULL: it does not hold.
  holds_since int8,
  -- When actions were last taken; NULL: never.
  acted_at timestamptz,
  PRIMARY KEY (tenant_id, device_id, rule_id)
) WITH (fillfactor = 80);
CREATE INDEX rule_states_by_rule ON rule_states (tenant_id, rule_id);
SELECT kellet_isolate('rule_states');

-- Actions on their way. Trusted for: every action that was decided and neither taken nor given up; dead ones for 30 days.
CREATE TABLE rule_actions (
  tenant_id text NOT NULL,
  action_id uuid NOT NULL,
  rule_id uuid NOT NULL,
  device_id uuid NOT NULL,
  -- As in rules.actions.
  action jsonb NOT NULL,
  -- The CloudEvent.
  event text NOT NULL,
  attempts int4 NOT NULL DEFAULT 0,
  next_at timestamptz NOT NULL DEFAULT now(),
  created_at timestamptz NOT NULL DEFAULT now(),
  -- Set when it is given up.
  dead_at timestamptz,
  error text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant_id, action_id)
);
CREATE INDEX rule_actions_due ON rule_actions (next_at) WHERE dead_at IS NULL;
CREATE INDEX rule_actions_dead ON rule_actions (dead_at) WHERE dead_at IS NOT NULL;
SELECT kellet_isolate('rule_actions');

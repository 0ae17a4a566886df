-- The ground every other migration stands on: roles, the rule of row-level security, tenants and the outbox.

-- kellet_tenant is the role of every transaction on behalf of a caller; row-level security applies to it. The login role
-- owns the tables and is used by the loops that work across tenants.
CREATE FUNCTION kellet_role(role_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
    END IF;
  EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL; -- another database of this server was migrated at the same moment
  END;
  -- Who made a role may administer it, but not yet take it (PostgreSQL 16 and later); granting it again changes nothing.
  BEGIN
    EXECUTE format('GRANT %I TO %I', role_name, current_user);
  EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- granted by an administrator; if not, the first transaction that takes the role says so
  END;
  EXECUTE format('GRANT USAGE ON SCHEMA public TO %I', role_name);
END
$$;
SELECT kellet_role('kellet_tenant');

-- The tenant of the transaction; NULL outside one, so that no policy matches.
CREATE FUNCTION kellet_tenant_id() RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS
$$ SELECT nullif(current_setting('kellet.tenant_id', true), '') $$;

-- Puts a table with a tenant_id behind row-level security and gives the tenant role its rights on it.
CREATE FUNCTION kellet_isolate(relation regclass, rights text DEFAULT 'SELECT, INSERT, UPDATE, DELETE') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', relation);
  EXECUTE format('CREATE POLICY tenant ON %s TO kellet_tenant USING (tenant_id = kellet_tenant_id())
                  WITH CHECK (tenant_id = kellet_tenant_id())', relation);
  EXECUTE format('GRANT %s ON %s TO kellet_tenant', rights, relation);
END
$$;

-- Trusted for: which tenants exist, and their limits. Written by control (Tenant resources) alone.
CREATE TABLE tenants (
  tenant_id text PRIMARY KEY CHECK (tenant_id ~ '^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$'),
  name text NOT NULL,
  -- The Kubernetes namespace that holds the tenant's resources.
  namespace text NOT NULL UNIQUE,
  rate_limit_per_minute int4 NOT NULL DEFAULT 1000,
  -- API.md quotas, defaults: the JSON of the public messages, proto names.
  quotas jsonb NOT NULL DEFAULT '{}',
  defaults jsonb NOT NULL DEFAULT '{}',
  ip_allowlist text[] NOT NULL DEFAULT '{}',
  mfa_required boolean NOT NULL DEFAULT false,
  trusted_signing_keys text[] NOT NULL DEFAULT '{}',
  -- A deleted tenant's row stays: its id is never given out again.
  deleted_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
SELECT kellet_isolate('tenants', 'SELECT');

-- Events on their way to the broker. Trusted for: every event whose cause was committed and which is not published yet.
CREATE TABLE outbox (
  position int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id text NOT NULL,
  event_id uuid NOT NULL,
  subject text NOT NULL,
  payload text NOT NULL,
  not_before timestamptz NOT NULL DEFAULT now()
);
SELECT kellet_isolate('outbox', 'INSERT');

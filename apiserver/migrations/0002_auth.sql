-- Who may sign in, and every credential that is in force: accounts, sessions, refresh tokens, API keys.
-- No credential is stored in clear: passwords as argon2id, tokens and keys as SHA-256.

-- Trusted for: who a person is and what role they hold. A platform administrator belongs to no tenant (tenant_id NULL), so
-- that row-level security never shows one to a tenant.
CREATE TABLE users (
  user_id uuid PRIMARY KEY,
  tenant_id text REFERENCES tenants,
  email text NOT NULL,
  name text NOT NULL DEFAULT '',
  role text NOT NULL CHECK (role IN ('platform_admin', 'tenant_admin', 'operator', 'viewer')),
  password_hash text NOT NULL,
  disabled boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  CHECK ((tenant_id IS NULL) = (role = 'platform_admin'))
);
-- An address is one account of a tenant, however it is written; sign-in without a tenant looks through all of them.
CREATE UNIQUE INDEX users_by_email ON users (lower(email), tenant_id) NULLS NOT DISTINCT;
CREATE INDEX users_by_tenant ON users (tenant_id, user_id);
SELECT kellet_isolate('users');

-- A sign-in and everything that was refreshed from it. Trusted for: whether its access and refresh tokens still hold.
CREATE TABLE sessions (
  session_id uuid PRIMARY KEY,
  tenant_id text REFERENCES tenants,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  user_agent text NOT NULL DEFAULT '',
  ip text NOT NULL DEFAULT '',
  aal text NOT NULL DEFAULT 'aal1' CHECK (aal IN ('aal1', 'aal2')),
  created_at timestamptz NOT NULL,
  last_used_at timestamptz NOT NULL,
  -- The end of the whole family of refresh tokens, whatever is refreshed.
  expires_at timestamptz NOT NULL,
  revoked_at timestamptz
);
CREATE INDEX sessions_by_user ON sessions (user_id, session_id);
CREATE INDEX sessions_by_end ON sessions (expires_at);
SELECT kellet_isolate('sessions');

-- One row a refresh token ever given out, so that reuse of an old one is recognised for as long as its session lasts.
CREATE TABLE refresh_tokens (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  session_id uuid NOT NULL REFERENCES sessions ON DELETE CASCADE,
  expires_at timestamptz NOT NULL,
  used_at timestamptz,
  -- The token that this one was exchanged for.
  successor_hash bytea
);
CREATE INDEX refresh_tokens_by_session ON refresh_tokens (session_id);

-- Keys of service accounts and of devices. Trusted for: whether a key is in force and what it may do.
CREATE TABLE api_keys (
  key_id uuid PRIMARY KEY,
  tenant_id text NOT NULL REFERENCES tenants,
  -- The device that holds the key; NULL for a service account's.
  device_id uuid,
  name text NOT NULL DEFAULT '',
  key_hash bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
  prefix text NOT NULL,
  last4 text NOT NULL,
  -- A service account's; a device's follow from its kind.
  scopes text[] NOT NULL DEFAULT '{}',
  ip_allowlist text[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);
CREATE INDEX api_keys_of_services ON api_keys (tenant_id, key_id) WHERE device_id IS NULL;
CREATE INDEX api_keys_of_devices ON api_keys (tenant_id, device_id) WHERE device_id IS NOT NULL;
SELECT kellet_isolate('api_keys');

-- Failed sign-ins per address and per pair of account and address. Unlogged: forgetting them in a crash harms nobody.
CREATE UNLOGGED TABLE login_failures (
  -- SHA-256 of what is counted.
  subject bytea PRIMARY KEY,
  failures int4 NOT NULL,
  last_failure_at timestamptz NOT NULL,
  blocked_until timestamptz NOT NULL
);
CREATE INDEX login_failures_by_time ON login_failures (last_failure_at);

-- What the last Tenant manifest said, field by field: a field that REST has changed since keeps its value until the manifest
-- itself changes that field.
ALTER TABLE tenants ADD COLUMN applied jsonb NOT NULL DEFAULT '{}';
-- A tenant reads its own row; what it may set for itself is checked by the service.
GRANT UPDATE (name, defaults, ip_allowlist, mfa_required, trusted_signing_keys, updated_at) ON tenants TO kellet_tenant;

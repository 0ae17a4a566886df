-- Single sign-on: OpenID Connect providers of tenants, and which of their users are whose.

-- Trusted for: whose word is taken for who signs in to a tenant.
CREATE TABLE sso_providers (
  tenant_id text NOT NULL REFERENCES tenants,
  provider text NOT NULL,
  issuer text NOT NULL,
  client_id text NOT NULL,
  -- Encrypted with a key of the service (platform/sealed-secrets.ts).
  client_secret text NOT NULL,
  -- In lower case.
  allowed_domains text[] NOT NULL,
  role_mapping jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, provider)
);
-- Sign-ins name a provider or a domain before the tenant is known.
CREATE INDEX sso_providers_by_name ON sso_providers (provider);
CREATE INDEX sso_providers_by_domain ON sso_providers USING gin (allowed_domains);
SELECT kellet_isolate('sso_providers');

-- The user that a person at a provider is, by the provider's own id, which unlike an e-mail address never changes hands.
CREATE TABLE sso_identities (
  tenant_id text NOT NULL,
  provider text NOT NULL,
  subject text NOT NULL,
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  -- Whether the user was made by the first sign-in, and so has the role that the provider's groups give.
  provisioned boolean NOT NULL,
  PRIMARY KEY (tenant_id, provider, subject),
  FOREIGN KEY (tenant_id, provider) REFERENCES sso_providers ON DELETE CASCADE
);
CREATE INDEX sso_identities_by_user ON sso_identities (user_id);
-- An address that now belongs to somebody else does not lead to its former holder's account.
CREATE UNIQUE INDEX sso_identities_of_provider ON sso_identities (tenant_id, provider, user_id);
SELECT kellet_isolate('sso_identities');

-- Sign-ins at a provider that have returned, by the SHA-256 of their state: none returns twice.
CREATE TABLE sso_returns (
  state_hash bytea PRIMARY KEY CHECK (length(state_hash) = 32),
  tenant_id text NOT NULL REFERENCES tenants,
  expires_at timestamptz NOT NULL
);
CREATE INDEX sso_returns_by_tenant ON sso_returns (tenant_id);
CREATE INDEX sso_returns_by_end ON sso_returns (expires_at);
SELECT kellet_isolate('sso_returns', 'SELECT (tenant_id), DELETE');

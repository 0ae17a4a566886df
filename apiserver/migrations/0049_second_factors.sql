-- Second factors of users: authenticator apps, security keys and passkeys, recovery codes; and sign-ins that wait for one.

ALTER TABLE users ADD COLUMN mfa_enrolled boolean NOT NULL DEFAULT false;
-- When the user last proved who they are in this session: at the sign-in, or when they enrolled a second factor.
ALTER TABLE sessions ADD COLUMN authenticated_at timestamptz NOT NULL DEFAULT now();

-- One row per user who has enrolled a factor or begun to. Trusted for: which authenticator codes are right, which were
-- used, and how often wrong ones were tried. Its lock makes attempts of one user take turns.
CREATE TABLE second_factors (
  user_id uuid PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  tenant_id text REFERENCES tenants,
  -- Encrypted with a key of the service (platform/sealed-secrets.ts).
  totp_secret text,
  -- The last 30-second step whose code was accepted: neither it nor an earlier one is accepted again.
  totp_last_step int4 NOT NULL DEFAULT 0,
  -- An enrolment that waits for its first code.
  pending_totp_secret text,
  pending_totp_since timestamptz,
  -- The registration of a security key that is in progress, in one session.
  registration_challenge text,
  registration_session uuid,
  registration_until timestamptz,
  failures int4 NOT NULL DEFAULT 0,
  last_failure_at timestamptz,
  blocked_until timestamptz
);
CREATE INDEX second_factors_by_tenant ON second_factors (tenant_id);
-- Tenants may remove the factors of their users, but not read them.
SELECT kellet_isolate('second_factors', 'SELECT (user_id, tenant_id), DELETE');

-- Security keys and passkeys. Trusted for: the public key that an assertion must match, and its last counter.
CREATE TABLE webauthn_credentials (
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  credential_id text NOT NULL,
  tenant_id text REFERENCES tenants,
  name text NOT NULL DEFAULT '',
  public_key bytea NOT NULL,
  counter int8 NOT NULL,
  transports text[] NOT NULL DEFAULT '{}',
  created_at timestamptz NOT NULL,
  last_used_at timestamptz,
  PRIMARY KEY (user_id, credential_id)
);
CREATE INDEX webauthn_credentials_by_tenant ON webauthn_credentials (tenant_id);
SELECT kellet_isolate('webauthn_credentials', 'SELECT (user_id, tenant_id), DELETE');

-- Unused recovery codes as SHA-256; a code is 80 random bits. A used one is deleted.
CREATE TABLE recovery_codes (
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  code_hash bytea NOT NULL CHECK (length(code_hash) = 32),
  tenant_id text REFERENCES tenants,
  PRIMARY KEY (user_id, code_hash)
);
CREATE INDEX recovery_codes_by_tenant ON recovery_codes (tenant_id);
SELECT kellet_isolate('recovery_codes', 'SELECT (user_id, tenant_id), DELETE');

-- Sign-ins whose first factor was right, by the SHA-256 of their MFA token.
CREATE TABLE pending_sign_ins (
  token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
  user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE,
  tenant_id text REFERENCES tenants,
  -- The WebAuthn challenge that waits for its assertion; each is accepted once.
  challenge text,
  expires_at timestamptz NOT NULL
);
CREATE INDEX pending_sign_ins_by_user ON pending_sign_ins (user_id);
CREATE INDEX pending_sign_ins_by_tenant ON pending_sign_ins (tenant_id);
CREATE INDEX pending_sign_ins_by_end ON pending_sign_ins (expires_at);
SELECT kellet_isolate('pending_sign_ins', 'SELECT (user_id, tenant_id), DELETE');

-- The keys that sign access tokens after the configured one (KELLET_JWT_PRIVATE_KEY), which seals them.
-- Trusted for: which signatures are accepted. No tenant and no tenant's role has rights on it.
CREATE TABLE signing_keys (
  -- The key's JWK thumbprint (RFC 7638), which tokens name as kid.
  key_id text PRIMARY KEY,
  -- PKCS#8, sealed with AES-256-GCM: nonce, tag, ciphertext.
  sealed_key bytea NOT NULL,
  -- Later than created_at, so that every process knows the key before the first token names it.
  signs_from timestamptz NOT NULL UNIQUE,
  created_at timestamptz NOT NULL
);

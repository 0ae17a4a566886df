-- Certificates and pre-shared keys of devices, beside their API keys.

-- What the hash of a key is made of: the key itself, the identity of a pre-shared key, or a certificate.
ALTER TABLE api_keys ADD COLUMN credential_type text NOT NULL DEFAULT 'api_key'
  CHECK (credential_type IN ('api_key', 'psk', 'certificate'));
CREATE INDEX api_keys_of_revoked_certificates ON api_keys (tenant_id, key_id)
  WHERE credential_type = 'certificate' AND revoked_at IS NOT NULL;

-- The certificate authorities of tenants. Trusted for: who signs the certificates of devices. The newest one that is not
-- revoked signs.
CREATE TABLE device_authorities (
  tenant_id text NOT NULL REFERENCES tenants,
  authority_id uuid NOT NULL,
  -- PEM.
  certificate text NOT NULL,
  -- Sealed with a key that the database does not have.
  private_key text NOT NULL,
  -- Whether the tenant has supplied it.
  supplied boolean NOT NULL,
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz,
  PRIMARY KEY (tenant_id, authority_id)
);
SELECT kellet_isolate('device_authorities');

-- The certificates of devices; whether one is in force says its row in api_keys, whose key_hash is the SHA-256 of the
-- certificate. Authority and device are of the same tenant by construction.
CREATE TABLE device_certificates (
  tenant_id text NOT NULL,
  key_id uuid NOT NULL REFERENCES api_keys ON DELETE CASCADE,
  device_id uuid NOT NULL,
  authority_id uuid NOT NULL,
  -- Hexadecimal digits.
  serial_number text NOT NULL,
  -- DER.
  certificate bytea NOT NULL,
  -- SHA-256 of the public key (SubjectPublicKeyInfo).
  public_key_hash bytea NOT NULL CHECK (length(public_key_hash) = 32),
  not_before timestamptz NOT NULL,
  not_after timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, key_id),
  UNIQUE (tenant_id, authority_id, serial_number),
  FOREIGN KEY (tenant_id, authority_id) REFERENCES device_authorities,
  FOREIGN KEY (tenant_id, device_id) REFERENCES devices
);
-- For the deletion of a key.
CREATE INDEX device_certificates_by_key ON device_certificates (key_id);
CREATE INDEX device_certificates_of_devices ON device_certificates (tenant_id, device_id, key_id);
CREATE INDEX device_certificates_by_end ON device_certificates (not_after);
SELECT kellet_isolate('device_certificates');

-- When the newest certificate of the device expires; NULL if it has none.
ALTER TABLE devices ADD COLUMN certificate_expires_at timestamptz;
-- For lists by type of credential.
CREATE INDEX devices_without_api_key ON devices (tenant_id, credential_type, device_id)
  WHERE deleted_at IS NULL AND credential_type <> 'api_key';

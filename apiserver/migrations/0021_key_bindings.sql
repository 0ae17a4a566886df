-- Provision keys that copied hashes do not open. Several tenants may name the same hash; at a claim the binding tells which of
-- them has the key.

-- SHA-256 of kellet-provision-key:<tenant>:<key>. NULL: the tenant used the key before there were bindings.
ALTER TABLE provision_keys ADD COLUMN binding bytea CHECK (octet_length(binding) = 32);
ALTER TABLE provision_keys DROP CONSTRAINT provision_keys_pkey, ADD PRIMARY KEY (key_hash, tenant_id);

-- A key opens one template of a tenant; a hash in another tenant stands in nobody's way.
CREATE UNIQUE INDEX provisioning_templates_by_tenant_key ON provisioning_templates (tenant_id, key_hash)
  WHERE detached_at IS NULL;
DROP INDEX provisioning_templates_by_key;

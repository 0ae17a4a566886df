-- Profiles, provisioning templates with their keys, and the creations of custom resources through REST.

-- Trusted for: what devices of a profile inherit. The working copy of the DeviceProfile resources, written by their applier
-- alone.
CREATE TABLE profiles (
  tenant_id text NOT NULL REFERENCES tenants,
  profile_id uuid NOT NULL,
  namespace text NOT NULL,
  -- metadata.name of the resource.
  resource_name text NOT NULL,
  name text NOT NULL,
  -- The JSON of the public message Profile without id, name and times; proto names.
  document jsonb NOT NULL,
  -- uid and generation of the resource that the row was written from: an older generation never comes after a newer one.
  resource_uid text NOT NULL,
  generation int8 NOT NULL,
  -- The resource went with its namespace; devices go on with what they inherited.
  detached_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, profile_id)
);
CREATE INDEX profiles_by_name ON profiles (tenant_id, name COLLATE "C", profile_id);
SELECT kellet_isolate('profiles');

-- Trusted for: who may claim what. The working copy of the ProvisioningTemplate resources, written by their applier alone.
CREATE TABLE provisioning_templates (
  tenant_id text NOT NULL REFERENCES tenants,
  template_id uuid NOT NULL,
  namespace text NOT NULL,
  resource_name text NOT NULL,
  name text NOT NULL,
  profile_id uuid NOT NULL,
  hardware_id_pattern text NOT NULL,
  one_time boolean NOT NULL,
  -- NULL: the key never expires.
  expires_in_seconds int4,
  credential_type text NOT NULL CHECK (credential_type IN ('api_key', 'psk', 'certificate')),
  default_group_ids uuid[] NOT NULL DEFAULT '{}',
  enabled boolean NOT NULL,
  -- SHA-256 of the provision key in force; its state is the row of provision_keys.
  key_hash bytea NOT NULL CHECK (octet_length(key_hash) = 32),
  -- As in profiles.
  resource_uid text NOT NULL,
  generation int8 NOT NULL,
  -- The resource went with its namespace; nobody claims with it any more.
  detached_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, template_id),
  FOREIGN KEY (tenant_id, profile_id) REFERENCES profiles
);
-- A key opens one template.
CREATE UNIQUE INDEX provisioning_templates_by_key ON provisioning_templates (key_hash) WHERE detached_at IS NULL;
CREATE INDEX provisioning_templates_by_name ON provisioning_templates (tenant_id, name COLLATE "C", template_id);
CREATE INDEX provisioning_templates_by_profile ON provisioning_templates (tenant_id, profile_id);
SELECT kellet_isolate('provisioning_templates');

-- Trusted for: whose a provision key is, since when it is known, and whether it was used up. Rows outlive their template, so
-- that a used or expired key stays so when a template with it is made again.
CREATE TABLE provision_keys (
  key_hash bytea PRIMARY KEY CHECK (octet_length(key_hash) = 32),
  tenant_id text NOT NULL REFERENCES tenants,
  first_seen_at timestamptz NOT NULL DEFAULT now(),
  -- The first device that a one-time template made with the key.
  used_at timestamptz,
  used_by_hardware_id text,
  CHECK ((used_at IS NULL) = (used_by_hardware_id IS NULL))
);
SELECT kellet_isolate('provision_keys');

-- Devices made with a template, counted in slots so that claims of a whole fleet do not wait for one row.
CREATE TABLE provisioning_claims (
  tenant_id text NOT NULL,
  template_id uuid NOT NULL,
  slot int2 NOT NULL,
  claims int4 NOT NULL,
  PRIMARY KEY (tenant_id, template_id, slot)
);
SELECT kellet_isolate('provisioning_claims');

-- Trusted for: whether a custom resource that REST wrote was taken up (active) or must go (cancelled).
CREATE TABLE resource_intents (
  tenant_id text NOT NULL REFERENCES tenants,
  intent_id uuid NOT NULL,
  kind text NOT NULL,
  namespace text NOT NULL,
  name text NOT NULL,
  state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'active', 'cancelled')),
  deadline timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  settled_at timestamptz,
  PRIMARY KEY (tenant_id, intent_id)
);
CREATE INDEX resource_intents_pending ON resource_intents (deadline) WHERE state = 'pending';
CREATE INDEX resource_intents_settled ON resource_intents (settled_at) WHERE state = 'active';
SELECT kellet_isolate('resource_intents');

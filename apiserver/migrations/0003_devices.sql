-- Devices and their groups.

-- Trusted for: which devices a tenant has, what they inherit, and whether they are online. A deleted device's row stays, for
-- its proofs.
CREATE TABLE devices (
  tenant_id text NOT NULL REFERENCES tenants,
  device_id uuid NOT NULL,
  name text NOT NULL,
  hardware_id text NOT NULL,
  -- NULL: the tenant's defaults apply.
  profile_id uuid,
  tags jsonb NOT NULL DEFAULT '{}',
  metadata jsonb,
  customer_id uuid,
  gateway_device_id uuid,
  credential_type text NOT NULL DEFAULT 'api_key' CHECK (credential_type IN ('api_key', 'psk', 'certificate')),
  status text NOT NULL DEFAULT 'offline' CHECK (status IN ('online', 'offline')),
  -- When the last point arrived; NULL: never.
  last_seen timestamptz,
  -- The last sign of life of any kind, and when an online device goes offline unless another follows.
  alive_at timestamptz,
  offline_at timestamptz,
  firmware_version text NOT NULL DEFAULT '',
  software_version text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz,
  PRIMARY KEY (tenant_id, device_id)
) WITH (fillfactor = 80); -- last_seen changes every few seconds and is in no index: room for heap-only updates
-- A hardware id is unique among living devices only.
CREATE UNIQUE INDEX devices_by_hardware_id ON devices (tenant_id, hardware_id) WHERE deleted_at IS NULL;
CREATE INDEX devices_by_profile ON devices (tenant_id, profile_id, device_id) WHERE deleted_at IS NULL;
CREATE INDEX devices_by_gateway ON devices (tenant_id, gateway_device_id) WHERE gateway_device_id IS NOT NULL;
CREATE INDEX devices_online ON devices (tenant_id, device_id) WHERE status = 'online';
SELECT kellet_isolate('devices');

CREATE TABLE device_groups (
  tenant_id text NOT NULL REFERENCES tenants,
  group_id uuid NOT NULL,
  name text NOT NULL,
  description text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, group_id),
  UNIQUE (tenant_id, name)
);
SELECT kellet_isolate('device_groups');

CREATE TABLE device_group_members (
  tenant_id text NOT NULL,
  group_id uuid NOT NULL,
  device_id uuid NOT NULL,
  PRIMARY KEY (tenant_id, group_id, device_id),
  FOREIGN KEY (tenant_id, group_id) REFERENCES device_groups ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, device_id) REFERENCES devices ON DELETE CASCADE
);
CREATE INDEX device_group_members_by_device ON device_group_members (tenant_id, device_id);
SELECT kellet_isolate('device_group_members');

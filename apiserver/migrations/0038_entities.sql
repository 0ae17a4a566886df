-- Customers, assets and entity views, and what belongs to a customer.

-- Trusted for: whose users see which devices, assets and views.
CREATE TABLE customers (
  tenant_id text NOT NULL REFERENCES tenants,
  customer_id uuid NOT NULL,
  name text NOT NULL,
  contact text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, customer_id)
);
SELECT kellet_isolate('customers');

-- Things that devices belong to, as trees. Changes to a tenant's trees hold its lock (assetTreesLock).
CREATE TABLE assets (
  tenant_id text NOT NULL REFERENCES tenants,
  asset_id uuid NOT NULL,
  name text NOT NULL,
  type text NOT NULL DEFAULT '',
  -- NULL: a root.
  parent_asset_id uuid,
  customer_id uuid,
  tags jsonb NOT NULL DEFAULT '{}',
  -- Levels below this asset, so that a move knows how deep the tree becomes without reading all that is moved.
  height int4 NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, asset_id),
  FOREIGN KEY (tenant_id, parent_asset_id) REFERENCES assets,
  FOREIGN KEY (tenant_id, customer_id) REFERENCES customers,
  CHECK (parent_asset_id <> asset_id)
);
CREATE INDEX assets_by_parent ON assets (tenant_id, parent_asset_id, asset_id) WHERE parent_asset_id IS NOT NULL;
CREATE INDEX assets_by_height ON assets (tenant_id, parent_asset_id, height) WHERE parent_asset_id IS NOT NULL;
CREATE INDEX assets_by_customer ON assets (tenant_id, customer_id, asset_id) WHERE customer_id IS NOT NULL;
SELECT kellet_isolate('assets');

-- Windows on the data of a device, or on an asset. Trusted for: what users of a customer may read of devices that are not
-- their customer's.
CREATE TABLE entity_views (
  tenant_id text NOT NULL REFERENCES tenants,
  entity_view_id uuid NOT NULL,
  name text NOT NULL,
  device_id uuid,
  asset_id uuid,
  -- Empty: all keys.
  keys text[] NOT NULL DEFAULT '{}',
  -- Nanoseconds since 1970, the end exclusive; NULL: no bound.
  start_time int8,
  end_time int8,
  customer_id uuid,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, entity_view_id),
  FOREIGN KEY (tenant_id, device_id) REFERENCES devices ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, asset_id) REFERENCES assets ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, customer_id) REFERENCES customers,
  CHECK ((device_id IS NULL) <> (asset_id IS NULL))
);
CREATE INDEX entity_views_by_customer ON entity_views (tenant_id, customer_id, entity_view_id)
  WHERE customer_id IS NOT NULL;
CREATE INDEX entity_views_by_device ON entity_views (tenant_id, device_id) WHERE device_id IS NOT NULL;
CREATE INDEX entity_views_by_asset ON entity_views (tenant_id, asset_id) WHERE asset_id IS NOT NULL;
SELECT kellet_isolate('entity_views');

-- No device has had a customer so far, so there is nothing to validate. A deleted device has none.
ALTER TABLE devices ADD CONSTRAINT devices_customer FOREIGN KEY (tenant_id, customer_id) REFERENCES customers NOT VALID;
CREATE INDEX devices_by_customer ON devices (tenant_id, customer_id, device_id) WHERE customer_id IS NOT NULL;

-- The customer to whose devices and entities a user is limited; NULL: the whole tenant.
ALTER TABLE users ADD COLUMN customer_id uuid,
  ADD CHECK (customer_id IS NULL OR role IN ('operator', 'viewer')),
  ADD CONSTRAINT users_customer FOREIGN KEY (tenant_id, customer_id) REFERENCES customers;
CREATE INDEX users_by_customer ON users (tenant_id, customer_id) WHERE customer_id IS NOT NULL;

-- Attributes of devices: named values that are kept apart from telemetry.

-- Trusted for: the attributes of a device that is not deleted. Written under the lock of the device's row.
CREATE TABLE device_attributes (
  tenant_id text NOT NULL REFERENCES tenants,
  device_id uuid NOT NULL,
  -- client: written by the device; shared: written by users and read by the device; server: hidden from the device.
  scope text NOT NULL CHECK (scope IN ('client', 'server', 'shared')),
  -- {name: {"value": any JSON value but null, "updated_at": milliseconds since 1970}}.
  attributes jsonb NOT NULL,
  PRIMARY KEY (tenant_id, device_id, scope)
);
SELECT kellet_isolate('device_attributes');

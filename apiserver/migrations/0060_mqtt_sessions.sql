-- Sessions of devices on MQTT that outlast their connection. Commands that wait are those of device_commands.

-- Trusted for: which messages a device gets when it connects again. A device has at most one; one without an expiry is
-- not stored.
CREATE TABLE mqtt_sessions (
  tenant_id text NOT NULL REFERENCES tenants,
  device_id uuid NOT NULL,
  client_id text NOT NULL,
  -- The connection that writes the session: a newer one of the device has another.
  connection_id uuid NOT NULL,
  -- {filter: granted QoS}.
  subscriptions jsonb NOT NULL,
  -- Put off as long as the connection is open.
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, device_id)
);
SELECT kellet_isolate('mqtt_sessions');
CREATE INDEX mqtt_sessions_by_expiry ON mqtt_sessions (expires_at);

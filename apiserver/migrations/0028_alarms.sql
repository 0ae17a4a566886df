-- Alarms: faults of devices, raised by rules or by hand.

-- Trusted for: which faults a device has or had. An alarm that is not cleared counts further occurrences instead of being
-- raised again.
CREATE TABLE alarms (
  tenant_id text NOT NULL REFERENCES tenants,
  alarm_id uuid NOT NULL,
  device_id uuid NOT NULL,
  -- NULL: raised by hand.
  rule_id uuid,
  type text NOT NULL,
  severity text NOT NULL CHECK (severity IN ('critical', 'major', 'minor', 'warning', 'indeterminate')),
  status text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'acknowledged', 'cleared')),
  count int4 NOT NULL DEFAULT 1,
  first_at timestamptz NOT NULL,
  last_at timestamptz NOT NULL,
  details jsonb,
  acknowledged_at timestamptz,
  cleared_at timestamptz,
  PRIMARY KEY (tenant_id, alarm_id)
) WITH (fillfactor = 80); -- count and last_at change with every match and are in no index
CREATE UNIQUE INDEX alarms_open_of_rule ON alarms (tenant_id, rule_id, device_id)
  WHERE status <> 'cleared' AND rule_id IS NOT NULL;
CREATE UNIQUE INDEX alarms_open_by_hand ON alarms (tenant_id, device_id, type)
  WHERE status <> 'cleared' AND rule_id IS NULL;
CREATE INDEX alarms_by_device ON alarms (tenant_id, device_id, alarm_id);
CREATE INDEX alarms_by_rule ON alarms (tenant_id, rule_id, alarm_id);
-- Few are open, whatever the number that ever was.
CREATE INDEX alarms_open ON alarms (tenant_id, status, alarm_id) WHERE status <> 'cleared';
SELECT kellet_isolate('alarms');

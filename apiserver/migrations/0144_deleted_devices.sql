-- What deleted devices leave is deleted a week later (docs/decisions/0114).

-- Trusted for: every deleted device that has left something which nothing needs. A trigger adds them, so that no deletion is forgotten.
CREATE TABLE deleted_devices (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  -- By then its last points are counted, and nothing that was on its way with them is written any more.
  forget_at timestamptz NOT NULL DEFAULT now() + interval '7 days',
  PRIMARY KEY (tenant_id, device_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX deleted_devices_due ON deleted_devices (forget_at);
SELECT kellet_isolate('deleted_devices', 'SELECT');

CREATE FUNCTION note_deleted_device() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO deleted_devices (tenant_id, device_id) VALUES (NEW.tenant_id, NEW.device_id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION note_deleted_device FROM PUBLIC;
-- Signs of life cost only the comparison.
CREATE TRIGGER deleted_devices AFTER UPDATE ON devices FOR EACH ROW
  WHEN (OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION note_deleted_device();

-- Deletes the usage of devices that have no points, and counts what was rejected from them under the nil UUID, as that of unknown
-- devices is. The sums of the tenant stay the same.
CREATE FUNCTION telemetry_forget_rejections(tenant text, devices uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  gone int8;
BEGIN
  -- First, as whoever counts locks the rows in order.
  PERFORM FROM telemetry_usage WHERE tenant_id = tenant AND device_id = kellet_no_id() FOR UPDATE;
  WITH deleted AS (
    DELETE FROM telemetry_usage
    WHERE tenant_id = tenant AND device_id = ANY (devices) AND accepted = 0 AND stored_bytes = 0 RETURNING rejected
  ) SELECT coalesce(sum(rejected), 0) INTO gone FROM deleted;
  IF gone > 0 THEN
    INSERT INTO telemetry_usage AS held (tenant_id, device_id, rejected) VALUES (tenant, kellet_no_id(), gone)
      ON CONFLICT (tenant_id, device_id) DO UPDATE SET rejected = held.rejected + excluded.rejected;
    -- The triggers of telemetry_usage have added it once more.
    INSERT INTO telemetry_tenant_usage AS held (tenant_id, part, accepted, rejected, stored_bytes) VALUES (tenant, 1, 0, -gone, 0)
      ON CONFLICT (tenant_id, part) DO UPDATE SET rejected = held.rejected + excluded.rejected;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION telemetry_forget_rejections FROM PUBLIC;

-- Devices that were deleted before.
INSERT INTO deleted_devices (tenant_id, device_id, forget_at)
  SELECT tenant_id, device_id, greatest(now(), deleted_at + interval '7 days') FROM devices WHERE deleted_at IS NOT NULL;

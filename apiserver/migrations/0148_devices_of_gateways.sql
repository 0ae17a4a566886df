-- The gateway that has created a device, whichever it is connected through: how many a gateway may create has a limit. Unknown for
-- devices of before.
ALTER TABLE devices ADD COLUMN created_by_gateway_id uuid;
CREATE INDEX devices_created_by_gateway ON devices (tenant_id, created_by_gateway_id)
  WHERE created_by_gateway_id IS NOT NULL AND deleted_at IS NULL;

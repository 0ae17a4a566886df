-- An index of several columns is read column by column. With the tenant first, each entry of a text's rarest three characters was looked
-- for among the devices of the tenant; now only what has all characters is.
DROP INDEX devices_by_text;
CREATE INDEX devices_by_text ON devices USING gin (name gin_trgm_ops, hardware_id gin_trgm_ops, tenant_id)
  WITH (gin_pending_list_limit = 256) WHERE deleted_at IS NULL;

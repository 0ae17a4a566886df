-- When the newest bytes of an upload came: what nobody goes on with is dropped after a day.
ALTER TABLE ota_packages ADD COLUMN uploaded_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX ota_packages_with_partial_artifact ON ota_packages (uploaded_at) WHERE uploaded_bytes > 0;

-- Artifacts arrive in the content store under a key of their own, and take their checksum as key when they are complete.
-- So a transfer holds neither a file nor a transaction, and nothing of it can be read before it has been checked.

-- A row whose key has 16 bytes is an artifact on its way: staged. Processes of the release before look up keys of 32 bytes
-- alone. size_bytes of a staged artifact is the room that is kept for it.
ALTER TABLE artifacts
  ADD COLUMN staged boolean NOT NULL DEFAULT false,
  ADD COLUMN received_bytes int8 NOT NULL DEFAULT 0,
  -- When bytes last came, or when the artifact was last found to be the declared one: it is not swept for a while after that.
  ADD COLUMN touched_at timestamptz NOT NULL DEFAULT now();
ALTER TABLE artifacts ADD CONSTRAINT artifacts_staged_key CHECK (staged = (length(sha256) = 16)) NOT VALID;

-- The staged artifact of a package that is being uploaded.
ALTER TABLE ota_packages ADD COLUMN staging_key bytea;
CREATE INDEX ota_packages_by_staging_key ON ota_packages (tenant_id, staging_key) WHERE staging_key IS NOT NULL;
-- Which packages an artifact is kept for.
CREATE INDEX ota_packages_by_artifact ON ota_packages (tenant_id, sha256) WHERE deleted_at IS NULL;

-- Uploads that are under way begin again: they are asked how far they are, and told 0. uploaded_bytes, uploaded_at and the
-- pieces are used by processes of the release before alone; the release after this one drops them.
UPDATE ota_packages SET uploaded_bytes = 0 WHERE uploaded_bytes > 0;
TRUNCATE artifact_upload_pieces;

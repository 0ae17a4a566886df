-- Artifacts that are uploaded in parts.

-- Bytes received so far of a package whose artifact_uri is upload://; 0 for every other.
ALTER TABLE ota_packages ADD COLUMN uploaded_bytes int8 NOT NULL DEFAULT 0;

-- What has been received, in order and without gaps, up to uploaded_bytes. Trusted for nothing: the pieces are copied into the
-- content store when they are complete and have the declared checksum, and removed.
CREATE TABLE artifact_upload_pieces (
  tenant_id text NOT NULL,
  package_id uuid NOT NULL,
  -- Where in the artifact the piece begins.
  start_byte int8 NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant_id, package_id, start_byte),
  FOREIGN KEY (tenant_id, package_id) REFERENCES ota_packages ON DELETE CASCADE
);
ALTER TABLE artifact_upload_pieces ALTER COLUMN data SET STORAGE EXTERNAL;
SELECT kellet_isolate('artifact_upload_pieces');

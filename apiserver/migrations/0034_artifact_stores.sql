-- Artifacts may be kept outside of the database: in a folder or in S3.

ALTER TABLE artifacts
  -- Where the bytes are: '' for artifact_chunks, otherwise the URL of the store.
  ADD COLUMN store text NOT NULL DEFAULT '',
  -- What the names of its objects there begin with: TENANT/UUID.
  ADD COLUMN prefix text NOT NULL DEFAULT '',
  -- Of a staged artifact: the artifact that is being copied into another store. It does not count against the quota.
  ADD COLUMN copy_of bytea;
ALTER TABLE artifacts ADD CONSTRAINT artifacts_prefix CHECK ((store = '') = (prefix = '')) NOT VALID;
CREATE UNIQUE INDEX artifacts_copies ON artifacts (tenant_id, copy_of) WHERE copy_of IS NOT NULL;

-- The objects that hold the bytes of an artifact: 2 MiB each, except the last one. Trusted for: each was written completely
-- before its row.
CREATE TABLE artifact_parts (
  tenant_id text NOT NULL,
  sha256 bytea NOT NULL,
  -- A multiple of 2 MiB.
  start_byte int8 NOT NULL,
  size_bytes int4 NOT NULL,
  name text NOT NULL,
  PRIMARY KEY (tenant_id, sha256, start_byte),
  FOREIGN KEY (tenant_id, sha256) REFERENCES artifacts ON DELETE CASCADE
);
SELECT kellet_isolate('artifact_parts');

-- What has yet to be removed from a store: everything below the prefix, including objects that were written and never recorded.
CREATE TABLE artifact_remains (
  tenant_id text NOT NULL,
  store text NOT NULL,
  prefix text NOT NULL,
  size_bytes int8 NOT NULL,
  -- Later than a write that was under way.
  remove_after timestamptz NOT NULL,
  PRIMARY KEY (store, prefix)
);
CREATE INDEX artifact_remains_by_time ON artifact_remains (remove_after);
SELECT kellet_isolate('artifact_remains', 'INSERT');

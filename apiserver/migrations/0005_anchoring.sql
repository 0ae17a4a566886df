-- Anchor batches: from the first leaf to the proof (DECISIONS: proof material, chain mode, retention).

-- Trusted for: which leaves share a root, and what the chain said of it. Written by the telemetry writer until `sealed`,
-- by chain-anchor from then on.
CREATE TABLE anchor_batches (
  tenant_id text NOT NULL,
  batch_id uuid PRIMARY KEY,
  anchor_mode text NOT NULL CHECK (anchor_mode IN ('merkle', 'per_event', 'chain')),
  status text NOT NULL CHECK (status IN ('open', 'sealed', 'submitted', 'seen', 'confirmed', 'failed')),
  -- The telemetry writer that fills it; a dead writer's open batches are sealed from the committed rows.
  writer_id uuid NOT NULL,
  count int4 NOT NULL DEFAULT 0,
  -- 32 bytes a leaf, in leaf order; set when sealed. Every proof is derived from it.
  leaves bytea,
  -- Chain mode: [{device_id, previous_head, first_leaf, leaf_count}].
  segments jsonb,
  merkle_root bytea,
  -- Display order (byte-reversed), hex, as ARC and explorers show them.
  txid text,
  raw_tx bytea,
  bump bytea,
  block_height int4,
  block_hash text,
  attempts int4 NOT NULL DEFAULT 0,
  error text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  sealed_at timestamptz,
  submitted_at timestamptz,
  confirmed_at timestamptz
);
ALTER TABLE anchor_batches ALTER COLUMN leaves SET STORAGE EXTERNAL;
CREATE INDEX anchor_batches_unfinished ON anchor_batches (status, created_at) WHERE status <> 'confirmed';
CREATE INDEX anchor_batches_by_tenant ON anchor_batches (tenant_id, created_at, batch_id);
CREATE INDEX anchor_batches_by_txid ON anchor_batches (txid) WHERE txid IS NOT NULL;
CREATE INDEX anchor_batches_by_height ON anchor_batches (block_height) WHERE block_height IS NOT NULL;
SELECT kellet_isolate('anchor_batches', 'SELECT');

-- From a hash to its places: the first 8 bytes of the hash (big-endian, signed) and the leaf. A hit is checked against the
-- leaf vector. Written when a batch is sealed.
CREATE TABLE leaf_index (
  tenant_id text NOT NULL,
  prefix int8 NOT NULL,
  batch_id uuid NOT NULL,
  leaf_index int4 NOT NULL,
  device_id uuid NOT NULL
);
CREATE INDEX leaf_index_by_prefix ON leaf_index (tenant_id, prefix);
CREATE INDEX leaf_index_by_device ON leaf_index (tenant_id, device_id);
SELECT kellet_isolate('leaf_index', 'SELECT');

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
  -- The transaction that counts: the mined one, else the last one made. Written by chain-anchor alone, as all below it.
  -- Display order (byte-reversed), hex, as ARC and explorers show them.
  txid text,
  raw_tx bytea,
  bump bytea,
  block_height int4,
  block_hash text,
  -- Transactions made for it so far (chain_transactions).
  attempts int4 NOT NULL DEFAULT 0,
  -- What it waits for, or what the last attempt said; empty while all goes well.
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

-- Every transaction that chain-anchor has made or was paid by, written before it is sent and sent again byte for byte. All transactions of
-- one batch share an input until that input is proven to be spent by somebody else, so that at most one of them can be mined.
-- Trusted for: what may be on the chain, and what the processor last said of it.
CREATE TABLE chain_transactions (
  txid text PRIMARY KEY,
  purpose text NOT NULL CHECK (purpose IN ('anchor', 'split', 'funding')),
  -- The batch that an anchor commits to. A split fans a coin out; a funding is a stranger's payment to the wallet.
  batch_id uuid REFERENCES anchor_batches ON DELETE CASCADE,
  -- Whose coins it spends: transactions of one lease are attempts at the same thing. Empty for a funding.
  lease text NOT NULL,
  raw_tx bytea NOT NULL,
  attempt int4 NOT NULL,
  -- pending: may still be mined. mined: in a block whose header was checked. final: so deep that it is watched no longer.
  -- dead: an input is spent by another transaction that was mined.
  state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'mined', 'final', 'dead')),
  -- The processor's word (ARC's txStatus) and since when; empty before the first answer.
  processor_status text NOT NULL DEFAULT '',
  processor_status_since timestamptz NOT NULL DEFAULT now(),
  processor_block_hash text NOT NULL DEFAULT '',
  competing_txids text[] NOT NULL DEFAULT '{}',
  -- Set while `mined` or `final`.
  bump bytea,
  block_height int4,
  block_hash text,
  created_at timestamptz NOT NULL DEFAULT now(),
  -- When its status is asked for next.
  next_poll_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX chain_transactions_due ON chain_transactions (next_poll_at) WHERE state = 'pending';
CREATE INDEX chain_transactions_unsettled ON chain_transactions (block_height) WHERE state = 'mined';
CREATE INDEX chain_transactions_by_batch ON chain_transactions (batch_id);
CREATE INDEX chain_transactions_by_lease ON chain_transactions (lease);

-- The wallet's coins: P2PKH outputs to its key. Trusted for: what may be spent, and who has it.
CREATE TABLE wallet_outputs (
  txid text NOT NULL,
  output_index int4 NOT NULL,
  -- Compressed public key that can spend it, hex: a wallet with another key leaves it alone.
  public_key text NOT NULL,
  satoshis int8 NOT NULL CHECK (satoshis > 0),
  -- unmined: output of a split that is not mined yet. free: may be leased. leased: belongs to the transactions of one batch or
  -- split, of which one may be mined. spent: by a mined transaction of ours. lost: spent by somebody else; never tried again.
  state text NOT NULL CHECK (state IN ('unmined', 'free', 'leased', 'spent', 'lost')),
  -- The lease: a batch's id, or that of a split.
  leased_by text,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (txid, output_index)
);
CREATE INDEX wallet_outputs_free ON wallet_outputs (public_key, satoshis) WHERE state = 'free';
CREATE INDEX wallet_outputs_by_lease ON wallet_outputs (leased_by) WHERE leased_by IS NOT NULL;

-- Headers of the chain from the first block that matters on, from the independent header source, each checked for its link
-- and its proof of work. Trusted for: which block is on the chain; a proof holds while its block is here.
CREATE TABLE block_headers (
  height int4 PRIMARY KEY,
  -- Display order, hex.
  block_hash text NOT NULL,
  header bytea NOT NULL CHECK (length(header) = 80)
);
GRANT SELECT ON block_headers TO kellet_tenant;

-- SPEC, Proof record, for whoever reads by SQL.

CREATE FUNCTION kellet_sha256d(data bytea) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT sha256(sha256(data)) $$;

-- Siblings of a leaf in a tree over `level` (32 bytes a leaf), from leaf to root.
CREATE FUNCTION kellet_merkle_path(level bytea, leaf int4) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  path jsonb := '[]';
  width int4 := length(level) / 32;
  next_level bytea;
  sibling int4;
BEGIN
  WHILE width > 1 LOOP
    sibling := least(leaf # 1, width - 1);
    path := path || jsonb_build_object('hash', encode(substring(level FROM sibling * 32 + 1 FOR 32), 'hex'),
                                       'is_right', leaf % 2 = 0);
    SELECT string_agg(kellet_sha256d(substring(level FROM i * 64 + 1 FOR 32)
                                  || substring(level FROM least(i * 2 + 1, width - 1) * 32 + 1 FOR 32)), '' ORDER BY i)
      INTO next_level FROM generate_series(0, (width - 1) / 2) AS i;
    level := next_level;
    width := (width + 1) / 2;
    leaf := leaf / 2;
  END LOOP;
  RETURN path;
END
$$;

-- The head of a chain after `count` more leaves from `first` on.
CREATE FUNCTION kellet_chain_head(previous_head bytea, leaves bytea, first int4, count int4) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  FOR i IN first .. first + count - 1 LOOP
    previous_head := kellet_sha256d(previous_head || substring(leaves FROM i * 32 + 1 FOR 32));
  END LOOP;
  RETURN previous_head;
END
$$;

-- As kellet_merkle_path, for a leaf of a batch in chain mode: through its segment to the segment's head, then on to the root.
CREATE FUNCTION kellet_chain_path(leaves bytea, segments jsonb, leaf int4) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  segment record;
  path jsonb;
  own int4;
  heads bytea := '';
BEGIN
  FOR segment IN
    SELECT (ordinality - 1)::int4 AS place, decode(value ->> 'previous_head', 'hex') AS previous_head,
           (value ->> 'first_leaf')::int4 AS first, (value ->> 'leaf_count')::int4 AS count
    FROM jsonb_array_elements(segments) WITH ORDINALITY ORDER BY ordinality
  LOOP
    heads := heads || kellet_chain_head(segment.previous_head, leaves, segment.first, segment.count);
    IF leaf >= segment.first AND leaf < segment.first + segment.count THEN
      own := segment.place;
      path := jsonb_build_array(jsonb_build_object('hash',
          encode(kellet_chain_head(segment.previous_head, leaves, segment.first, leaf - segment.first), 'hex'),
          'is_right', false));
      FOR i IN leaf + 1 .. segment.first + segment.count - 1 LOOP
        path := path || jsonb_build_object('hash', encode(substring(leaves FROM i * 32 + 1 FOR 32), 'hex'), 'is_right', true);
      END LOOP;
    END IF;
  END LOOP;
  RETURN path || kellet_merkle_path(heads, own);
END
$$;

-- A row per confirmed leaf. Row-level security of the tables applies to whoever asks.
CREATE VIEW anchor_proofs WITH (security_invoker = true) AS
SELECT
  encode(substring(batch.leaves FROM leaf.leaf_index * 32 + 1 FOR 32), 'hex') AS data_hash,
  batch.batch_id,
  CASE batch.anchor_mode
    WHEN 'chain' THEN kellet_chain_path(batch.leaves, batch.segments, leaf.leaf_index)
    ELSE kellet_merkle_path(batch.leaves, leaf.leaf_index)
  END AS merkle_path,
  batch.txid,
  -- BRC-62: one BUMP, one transaction, which that BUMP proves.
  '0100beef01' || encode(batch.bump, 'hex') || '01' || encode(batch.raw_tx, 'hex') || '0100' AS beef_hex,
  batch.block_height,
  batch.block_hash,
  batch.confirmed_at,
  leaf.tenant_id,
  leaf.device_id
FROM leaf_index AS leaf
JOIN anchor_batches AS batch ON batch.tenant_id = leaf.tenant_id AND batch.batch_id = leaf.batch_id
WHERE batch.status = 'confirmed';
GRANT SELECT ON anchor_proofs TO kellet_tenant;

-- The index of leaves in packed form: from a hash to its leaf, from a device to its leaves, and from a leaf to its device, in some 15
-- bytes a leaf (telemetry/leaves/leaf-blocks.ts). leaf_index and its tables are read until their rows are packed.

-- Batches that are sealed and not packed yet, with the devices of their leaves.
CREATE TABLE unpacked_leaves (
  tenant_id text NOT NULL,
  batch_id uuid NOT NULL,
  -- Whether the batch is confirmed: then its leaves are looked up here, and packed once there are enough of them.
  is_proven boolean NOT NULL DEFAULT false,
  -- 16 bytes a leaf, in leaf order.
  devices bytea NOT NULL,
  PRIMARY KEY (tenant_id, batch_id)
);
ALTER TABLE unpacked_leaves ALTER COLUMN devices SET STORAGE EXTERNAL;
CREATE INDEX unpacked_leaves_proven ON unpacked_leaves (tenant_id, batch_id) WHERE is_proven;
SELECT kellet_isolate('unpacked_leaves', 'SELECT');
GRANT INSERT ON unpacked_leaves TO kellet_ingest;
CREATE POLICY ingest ON unpacked_leaves TO kellet_ingest USING (true) WITH CHECK (true);

-- Runs: leaves of one tenant that were packed together. Trusted for: where the proven leaves are that unpacked_leaves lacks.
CREATE TABLE leaf_runs (
  tenant_id text NOT NULL,
  run_id uuid NOT NULL,
  leaves int4 NOT NULL,
  batches int4 NOT NULL,
  devices int4 NOT NULL,
  least_batch uuid NOT NULL,
  greatest_batch uuid NOT NULL,
  -- Set when a larger run has its leaves. It stays for a while, for readers that have begun with it.
  replaced_at timestamptz,
  PRIMARY KEY (tenant_id, run_id)
);
CREATE INDEX leaf_runs_replaced ON leaf_runs (replaced_at) WHERE replaced_at IS NOT NULL;
SELECT kellet_isolate('leaf_runs', 'SELECT');

CREATE TABLE leaf_blocks (
  first int8 NOT NULL,
  -- 1: hashes, 2: devices, 3: postings, 4: batches, 5: places.
  part int2 NOT NULL,
  run_id uuid NOT NULL,
  -- Of the first device or batch.
  first_id uuid,
  tenant_id text NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (tenant_id, run_id, part, first),
  FOREIGN KEY (tenant_id, run_id) REFERENCES leaf_runs ON DELETE CASCADE
) WITH (toast_tuple_target = 8160);
ALTER TABLE leaf_blocks ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX leaf_blocks_by_id ON leaf_blocks (tenant_id, run_id, part, first_id) WHERE first_id IS NOT NULL;
SELECT kellet_isolate('leaf_blocks', 'SELECT');

-- Batches whose block was dropped from the chain after they were packed, until they are in another one.
CREATE TABLE withdrawn_proofs (
  tenant_id text NOT NULL,
  batch_id uuid NOT NULL,
  PRIMARY KEY (tenant_id, batch_id)
);
SELECT kellet_isolate('withdrawn_proofs', 'SELECT');

-- Rows come and go.
ALTER TABLE unpacked_leaves SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE leaf_runs SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE withdrawn_proofs SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
ALTER TABLE leaf_blocks SET (autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_freeze_min_age = 1000000);

-- A trigger, so that processes of an earlier version note it too.
CREATE FUNCTION note_proven_leaves() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE unpacked_leaves SET is_proven = NEW.status = 'confirmed'
    WHERE tenant_id = NEW.tenant_id AND batch_id = NEW.batch_id;
  IF NEW.status = 'confirmed' THEN
    DELETE FROM withdrawn_proofs WHERE tenant_id = NEW.tenant_id AND batch_id = NEW.batch_id;
  ELSIF NOT FOUND THEN
    INSERT INTO withdrawn_proofs (tenant_id, batch_id) VALUES (NEW.tenant_id, NEW.batch_id) ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION note_proven_leaves FROM PUBLIC;
CREATE TRIGGER proven_leaves_noted AFTER UPDATE OF status ON anchor_batches FOR EACH ROW
  WHEN ((OLD.status = 'confirmed') <> (NEW.status = 'confirmed')) EXECUTE FUNCTION note_proven_leaves();

-- Returns a number of at most four bytes, big-endian, or NULL beyond the end; `place` counts numbers of that width from 0.
CREATE FUNCTION kellet_number(data bytea, place int8, width int4) RETURNS int4 LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT CASE WHEN octet_length(data) >= (place + 1) * width THEN
  ('x' || lpad(encode(substring(data FROM (place * width)::int4 + 1 FOR width), 'hex'), 8, '0'))::bit(32)::int4 END $$;

-- Returns the number of bytes for a number below `count`.
CREATE FUNCTION kellet_number_width(count int4) RETURNS int4 LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT CASE WHEN count <= 256 THEN 1 WHEN count <= 65536 THEN 2 WHEN count <= 16777216 THEN 3 ELSE 4 END $$;

-- Returns the device of a leaf of a sealed batch, or NULL.
CREATE FUNCTION kellet_leaf_device(tenant text, batch uuid, leaf int4, hash bytea) RETURNS uuid
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE AS $$
DECLARE
  device uuid;
  run leaf_runs;
  block leaf_blocks;
  place int8;
  width int4;
BEGIN
  SELECT encode(substring(devices FROM leaf * 16 + 1 FOR 16), 'hex')::uuid INTO device FROM unpacked_leaves
    WHERE tenant_id = tenant AND batch_id = batch AND octet_length(devices) >= leaf * 16 + 16;
  IF FOUND THEN
    RETURN device;
  END IF;
  FOR run IN SELECT * FROM leaf_runs
    WHERE tenant_id = tenant AND replaced_at IS NULL AND least_batch <= batch AND greatest_batch >= batch
  LOOP
    SELECT * INTO block FROM leaf_blocks
      WHERE tenant_id = tenant AND run_id = run.run_id AND part = 4 AND first_id <= batch ORDER BY first_id DESC LIMIT 1;
    SELECT entry INTO place FROM generate_series(0, octet_length(block.data) / 20 - 1) AS entry
      WHERE substring(block.data FROM entry * 20 + 1 FOR 16) = uuid_send(batch);
    CONTINUE WHEN NOT FOUND;
    place := kellet_number(block.data, place * 5 + 4, 4) + leaf;
    width := kellet_number_width(run.devices);
    SELECT * INTO block FROM leaf_blocks
      WHERE tenant_id = tenant AND run_id = run.run_id AND part = 5 AND first <= place ORDER BY first DESC LIMIT 1;
    place := kellet_number(block.data, place - block.first, width);
    SELECT * INTO block FROM leaf_blocks
      WHERE tenant_id = tenant AND run_id = run.run_id AND part = 2 AND first <= place ORDER BY first DESC LIMIT 1;
    RETURN encode(substring(block.data FROM (place - block.first)::int4 * 20 + 1 FOR 16), 'hex')::uuid;
  END LOOP;
  SELECT l.device_id INTO device FROM leaf_index l
    WHERE l.tenant_id = tenant AND l.prefix = ('x' || encode(substring(hash FROM 1 FOR 8), 'hex'))::bit(64)::int8
      AND l.batch_id = batch AND l.leaf_index = leaf;
  RETURN device;
END
$$;

-- A row per confirmed leaf. Row-level security of the tables applies to whoever asks.
CREATE OR REPLACE VIEW anchor_proofs WITH (security_invoker = true) AS
SELECT
  encode(substring(batch.leaves FROM leaf * 32 + 1 FOR 32), 'hex') AS data_hash,
  batch.batch_id,
  CASE batch.anchor_mode
    WHEN 'chain' THEN kellet_chain_path(batch.leaves, batch.segments, leaf)
    ELSE kellet_merkle_path(batch.leaves, leaf)
  END AS merkle_path,
  batch.txid,
  -- BRC-62: one BUMP, one transaction, which that BUMP proves.
  '0100beef01' || encode(batch.bump, 'hex') || '01' || encode(batch.raw_tx, 'hex') || '0100' AS beef_hex,
  batch.block_height,
  batch.block_hash,
  batch.confirmed_at,
  batch.tenant_id,
  kellet_leaf_device(batch.tenant_id, batch.batch_id, leaf, substring(batch.leaves FROM leaf * 32 + 1 FOR 32)) AS device_id
FROM anchor_batches AS batch
CROSS JOIN LATERAL generate_series(0, octet_length(batch.leaves) / 32 - 1) AS leaf
WHERE batch.status = 'confirmed';

-- Moves the rows of leaf_index_N into unpacked_leaves and drops that table. Readers go on with it until the end. Throws
-- lock_not_available if a reader holds it for long.
CREATE FUNCTION telemetry_unpack_leaf_table(segment int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  moved int8;
BEGIN
  -- The batches are locked, so that none is confirmed meanwhile.
  EXECUTE format(
    'INSERT INTO unpacked_leaves (tenant_id, batch_id, is_proven, devices)
     SELECT l.tenant_id, l.batch_id, b.status = ''confirmed'', l.devices
     FROM (SELECT tenant_id, batch_id, string_agg(uuid_send(device_id), '''' ORDER BY leaf_index) AS devices
           FROM leaf_index_%s GROUP BY tenant_id, batch_id) AS l
     JOIN anchor_batches b ON b.tenant_id = l.tenant_id AND b.batch_id = l.batch_id
     FOR SHARE OF b', segment);
  GET DIAGNOSTICS moved = ROW_COUNT;
  PERFORM telemetry_drop_leaf_table(segment);
  RETURN moved;
END
$$;

-- Drops leaf_index_N. Readers wait for a moment. Throws lock_not_available if a reader holds it in every attempt.
CREATE FUNCTION telemetry_drop_leaf_table(segment int8, attempts int4 DEFAULT 40) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  FOR attempt IN 1 .. attempts LOOP
    BEGIN
      PERFORM set_config('lock_timeout', '250ms', true);
      EXECUTE format('DROP TABLE leaf_index_%s', segment);
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF attempt = attempts THEN
        RAISE;
      END IF;
      PERFORM pg_sleep(random() / 2);
    END;
  END LOOP;
  UPDATE telemetry_segments SET has_leaves = false, leaves = NULL WHERE segment_id = segment;
END
$$;
-- Drops leaf_index_N of a complete segment, which only processes of an earlier version fill, or creates its indexes. If somebody reads
-- it for long, as a backup does, it stays, and is dropped when leaves are moved.
CREATE FUNCTION telemetry_finish_leaf_table(segment int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  filled boolean;
BEGIN
  EXECUTE format('SELECT EXISTS (SELECT FROM leaf_index_%s)', segment) INTO filled;
  IF filled THEN
    EXECUTE format('CREATE INDEX ON leaf_index_%s (tenant_id, prefix)', segment);
    EXECUTE format('CREATE INDEX ON leaf_index_%s (tenant_id, device_id)', segment);
    EXECUTE format('ANALYZE leaf_index_%s', segment);
  ELSE
    BEGIN
      PERFORM telemetry_drop_leaf_table(segment, 1);
    EXCEPTION WHEN lock_not_available THEN
      NULL;
    END;
  END IF;
END
$$;
REVOKE ALL ON FUNCTION telemetry_unpack_leaf_table, telemetry_drop_leaf_table, telemetry_finish_leaf_table FROM PUBLIC;

DROP INDEX telemetry_segments_cold_leaves;
CREATE INDEX telemetry_segments_with_leaves ON telemetry_segments (segment_id) WHERE has_leaves;

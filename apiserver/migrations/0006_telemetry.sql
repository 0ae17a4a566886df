-- Telemetry: the writers, the segments that hold the points, latest values, usage and idempotency.

-- kellet_ingest is the role of a writer's connection: it may add points and batches and read none. kellet_maintenance reads
-- segments whole: consistency checks and compaction.
SELECT kellet_role('kellet_ingest'), kellet_role('kellet_maintenance');

-- Trusted for: which flushes of a writer were committed. A writer holds the session advisory lock of its id for as long as
-- it lives; who gets that lock otherwise may take it over (DECISIONS 4).
CREATE TABLE telemetry_writers (
  writer_id uuid PRIMARY KEY,
  -- Raised by whoever takes the writer over; flushes of an older epoch are refused.
  epoch int4 NOT NULL DEFAULT 0,
  -- The last committed flush.
  flush_number int8 NOT NULL DEFAULT 0,
  started_at timestamptz NOT NULL DEFAULT now(),
  -- Set when its open batches and its segment have been sealed, by itself or by who took it over.
  closed_at timestamptz
);
CREATE INDEX telemetry_writers_alive ON telemetry_writers (started_at) WHERE closed_at IS NULL;

-- The key of a writer's session advisory lock.
CREATE FUNCTION telemetry_writer_lock(writer uuid) RETURNS int8 LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended(writer::text, 6452817303) $$;

-- Every flush begins with this: it locks the writer's row, so that flushes of a writer commit in order, and refuses those of
-- a writer that was taken over (KL001) and those whose predecessor was not committed (KL002).
CREATE FUNCTION telemetry_fence(writer uuid, expected_epoch int4, number int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  found_row telemetry_writers;
BEGIN
  SELECT * INTO found_row FROM telemetry_writers WHERE writer_id = writer FOR UPDATE;
  IF found_row.epoch IS DISTINCT FROM expected_epoch THEN
    RAISE EXCEPTION 'writer % was taken over', writer USING ERRCODE = 'KL001';
  END IF;
  IF found_row.flush_number <> number - 1 THEN
    RAISE EXCEPTION 'flush % does not follow flush %', number, found_row.flush_number USING ERRCODE = 'KL002';
  END IF;
  UPDATE telemetry_writers SET flush_number = number WHERE writer_id = writer;
END
$$;

-- The points of all segments under row-level security; every segment inherits from it, and holds all the rows. Tenants read
-- here alone: the role has no right on a segment, to which row-level security would not apply (DECISIONS 8).
-- Trusted for: every acknowledged point, and its place in an anchor batch.
CREATE TABLE telemetry_points (
  -- Nanoseconds since 1970.
  time int8 NOT NULL,
  device_id uuid NOT NULL,
  batch_id uuid NOT NULL,
  leaf_index int4 NOT NULL,
  tenant_id text NOT NULL,
  data_hash bytea NOT NULL,
  -- RFC 8785 text of the values as accepted: what data_hash was computed from.
  payload text NOT NULL
);
SELECT kellet_isolate('telemetry_points', 'SELECT');
GRANT SELECT ON telemetry_points TO kellet_maintenance;

-- The catalogue of segments. open: written by its writer, without an index. sealed: complete. indexed: has its index on
-- (device_id, time). cold: moved to files.
CREATE TABLE telemetry_segments (
  segment_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  writer_id uuid NOT NULL,
  state text NOT NULL CHECK (state IN ('open', 'sealed', 'indexed', 'cold')),
  -- From `sealed` on. Times are nanoseconds since 1970, as the devices gave them.
  rows int8,
  least_time int8,
  greatest_time int8,
  opened_at timestamptz NOT NULL DEFAULT now(),
  sealed_at timestamptz,
  indexed_at timestamptz
);
CREATE INDEX telemetry_segments_by_writer ON telemetry_segments (writer_id);
CREATE INDEX telemetry_segments_unfinished ON telemetry_segments (segment_id) WHERE state IN ('open', 'sealed');

-- Makes the tables of a new segment: its points, and the places of the leaves that are sealed while it is open. Kept up row by
-- row, the indexes of leaf_index would take half of a writer's throughput; here they are built once, when the segment is
-- complete. Leaves outlive points: a segment that turns cold keeps leaf_index_N.
CREATE FUNCTION telemetry_open_segment(writer uuid) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
  segment int8;
BEGIN
  INSERT INTO telemetry_segments (writer_id, state) VALUES (writer, 'open') RETURNING segment_id INTO segment;
  EXECUTE format('CREATE TABLE telemetry_segment_%s () INHERITS (telemetry_points) WITH (autovacuum_enabled = false)', segment);
  EXECUTE format('ALTER TABLE telemetry_segment_%s ALTER COLUMN data_hash SET STORAGE PLAIN', segment);
  EXECUTE format('CREATE TABLE leaf_index_%s () INHERITS (leaf_index) WITH (autovacuum_enabled = false)', segment);
  EXECUTE format('GRANT INSERT ON telemetry_segment_%s, leaf_index_%s TO kellet_ingest', segment, segment);
  EXECUTE format('GRANT SELECT ON telemetry_segment_%s, leaf_index_%s TO kellet_maintenance', segment, segment);
  RETURN segment;
END
$$;

-- Chain mode: the end of each device's hash chain. A flush locks its devices in order and moves the heads it has built on
-- (DECISIONS 6), so that several writers cannot fork a chain.
CREATE TABLE device_chain (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  head bytea NOT NULL,
  length int8 NOT NULL,
  PRIMARY KEY (tenant_id, device_id)
);
SELECT kellet_isolate('device_chain', 'SELECT');

-- Moves heads from what the flush has built on to its own; KL003 when another writer has moved one in between.
CREATE FUNCTION telemetry_advance_chains(tenants text[], devices uuid[], befores bytea[], heads bytea[], leaves int4[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  moved int4;
BEGIN
  INSERT INTO device_chain (tenant_id, device_id, head, length)
    SELECT tenant, device, decode(repeat('00', 32), 'hex'), 0
    FROM unnest(tenants, devices) AS given (tenant, device) ORDER BY tenant, device
    ON CONFLICT DO NOTHING;
  PERFORM FROM device_chain
    JOIN unnest(tenants, devices) AS given (tenant, device) ON tenant_id = tenant AND device_id = device
    ORDER BY tenant_id, device_id FOR UPDATE OF device_chain;
  UPDATE device_chain SET head = given.after, length = length + given.added
    FROM unnest(tenants, devices, befores, heads, leaves) AS given (tenant, device, before, after, added)
    WHERE tenant_id = tenant AND device_id = device AND head = before;
  GET DIAGNOSTICS moved = ROW_COUNT;
  IF moved <> cardinality(devices) THEN
    RAISE EXCEPTION 'a chain was moved by another writer' USING ERRCODE = 'KL003';
  END IF;
END
$$;

-- The latest value of each key of a device, merged by device time; at most a second behind the points.
CREATE TABLE telemetry_latest (
  tenant_id text NOT NULL,
  device_id uuid PRIMARY KEY,
  -- {"numeric": {key: [value, "nanoseconds"]}, "string": {…}, "time": "nanoseconds of the latest point"}
  document jsonb NOT NULL
);
SELECT kellet_isolate('telemetry_latest', 'SELECT');

-- What was taken, by device; device_id is the nil UUID for points that name no device of the tenant. At most a second
-- behind; a crash loses at most that second's count.
CREATE TABLE telemetry_usage (
  tenant_id text NOT NULL,
  device_id uuid NOT NULL,
  accepted int8 NOT NULL DEFAULT 0,
  rejected int8 NOT NULL DEFAULT 0,
  -- Bytes of payloads and their hashes.
  stored_bytes int8 NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, device_id)
);
SELECT kellet_isolate('telemetry_usage', 'SELECT');

-- Answers of requests that carried an Idempotency-Key, for a day. Written in the flush that commits the request's points.
CREATE TABLE telemetry_idempotency (
  tenant_id text NOT NULL,
  -- Hex SHA-256 of the credential.
  credential_hash text NOT NULL,
  idempotency_key text NOT NULL,
  request_hash text NOT NULL,
  response text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, credential_hash, idempotency_key)
);
CREATE INDEX telemetry_idempotency_by_age ON telemetry_idempotency (created_at);
SELECT kellet_isolate('telemetry_idempotency', 'SELECT');

GRANT SELECT, UPDATE ON telemetry_writers TO kellet_ingest;
GRANT SELECT, UPDATE ON telemetry_segments TO kellet_ingest;
GRANT SELECT, INSERT, UPDATE ON anchor_batches, device_chain TO kellet_ingest;
GRANT INSERT ON leaf_index, telemetry_idempotency TO kellet_ingest;
GRANT SELECT ON telemetry_writers, telemetry_segments, anchor_batches, leaf_index, device_chain TO kellet_maintenance;

-- A writer writes for every tenant, and maintenance reads them all.
DO $$
DECLARE
  relation text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['anchor_batches', 'device_chain', 'leaf_index', 'telemetry_idempotency'] LOOP
    EXECUTE format('CREATE POLICY ingest ON %I TO kellet_ingest USING (true) WITH CHECK (true)', relation);
  END LOOP;
  FOREACH relation IN ARRAY ARRAY['anchor_batches', 'device_chain', 'leaf_index', 'telemetry_points'] LOOP
    EXECUTE format('CREATE POLICY maintenance ON %I FOR SELECT TO kellet_maintenance USING (true)', relation);
  END LOOP;
END
$$;

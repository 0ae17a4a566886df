-- What devices reported as the result of an update or a rollback, to be anchored as points of the device (docs/decisions/0037).

-- A row per terminal report, written in the transaction that applies it. Telemetry adds its point to an anchor batch in the
-- flush that also writes batch_id and leaf_index here, so that each result becomes exactly one point.
-- Trusted for: every result that was reported, and the place of its point.
CREATE TABLE ota_results (
  tenant_id text NOT NULL,
  -- UUIDv7: in order of the reports, but for those that arrive in the same milliseconds.
  result_id uuid NOT NULL,
  -- NULL: the device had an assignment of its own.
  rollout_id uuid,
  device_id uuid NOT NULL,
  -- Of the point: nanoseconds since 1970.
  time int8 NOT NULL,
  -- RFC 8785 text of the values, from which data_hash is computed. Kept for the proofs, whatever becomes of the point.
  payload text NOT NULL,
  data_hash bytea NOT NULL,
  -- NULL: not in a batch yet.
  batch_id uuid,
  leaf_index int4,
  PRIMARY KEY (tenant_id, result_id)
);
CREATE INDEX ota_results_by_rollout ON ota_results (tenant_id, rollout_id, result_id);
CREATE INDEX ota_results_by_device ON ota_results (tenant_id, device_id, result_id);
CREATE INDEX ota_results_waiting ON ota_results (result_id) WHERE batch_id IS NULL;
SELECT kellet_isolate('ota_results', 'SELECT, INSERT');

-- Writes the places of results within the flush that commits their points. KL005: one of them has a place already.
CREATE FUNCTION ota_place_results(ids uuid[], batches uuid[], leaves int4[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  placed int4;
BEGIN
  UPDATE ota_results SET batch_id = given.batch, leaf_index = given.leaf
    FROM unnest(ids, batches, leaves) AS given (id, batch, leaf)
    WHERE result_id = given.id AND batch_id IS NULL;
  GET DIAGNOSTICS placed = ROW_COUNT;
  IF placed <> cardinality(ids) THEN
    RAISE EXCEPTION 'a result has been anchored already' USING ERRCODE = 'KL005';
  END IF;
END
$$;
GRANT SELECT, UPDATE ON ota_results TO kellet_ingest;
CREATE POLICY ingest ON ota_results TO kellet_ingest USING (true) WITH CHECK (true);

-- Whether a failed device was scheduled again: the update has reached it, although its next command may not have.
ALTER TABLE ota_rollout_devices ADD COLUMN retried boolean NOT NULL DEFAULT false;

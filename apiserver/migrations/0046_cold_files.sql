-- Cold storage: the Parquet files that hold the points of segments that turned cold (docs/cold-storage.md).

-- A turn or a compaction that has put files into the store, under _staging/<attempt_id>. Inserted before the first file is
-- written, deleted when nothing is left there. An attempt without files in the catalogue was cut short: what it wrote is
-- removed.
CREATE TABLE cold_attempts (
  attempt_id uuid PRIMARY KEY,
  started_at timestamptz NOT NULL DEFAULT now(),
  -- Set before what is left of it is removed: it cannot be committed any more.
  ended boolean NOT NULL DEFAULT false
);

-- The catalogue of files. Trusted for: which file holds which points.
CREATE TABLE cold_files (
  -- The name of the file, without its extension.
  file_id uuid PRIMARY KEY,
  tenant_id text NOT NULL,
  -- UTC date of the points' own time.
  date date NOT NULL,
  -- Files of a run were written together, and follow each other in the order of their rows: a device is in one of them, or
  -- in neighbours. The number of runs of a date is bounded by compaction.
  run_id uuid NOT NULL,
  attempt_id uuid NOT NULL,
  -- live: read. superseded: its points are in other files, or past their retention; kept for readers that have begun.
  state text NOT NULL CHECK (state IN ('live', 'superseded')),
  -- Where the file is: _staging/<attempt_id>/…, its own folder, or _superseded/…. A file that is being moved may be there
  -- already.
  place text NOT NULL CHECK (place IN ('staging', 'own', 'superseded')),
  rows int4 NOT NULL,
  bytes int8 NOT NULL,
  least_device uuid NOT NULL,
  greatest_device uuid NOT NULL,
  -- Device times and times of arrival, nanoseconds since 1970.
  least_time int8 NOT NULL,
  greatest_time int8 NOT NULL,
  least_received int8 NOT NULL,
  greatest_received int8 NOT NULL,
  -- The end of the file, with the indexes of pages and the footer, and its SHA-256: what says where rows are must be right.
  tail_offset int8 NOT NULL,
  tail_sha256 bytea NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  superseded_at timestamptz
);
CREATE INDEX cold_files_by_date ON cold_files (tenant_id, date) WHERE state = 'live';
CREATE INDEX cold_files_by_arrival ON cold_files (tenant_id, greatest_received) WHERE state = 'live';
CREATE INDEX cold_files_to_move ON cold_files (created_at) WHERE place = 'staging' OR (state = 'superseded' AND place = 'own');
CREATE INDEX cold_files_superseded ON cold_files (superseded_at) WHERE state = 'superseded';
CREATE INDEX cold_files_of_attempt ON cold_files (attempt_id) WHERE place = 'staging';
SELECT kellet_isolate('cold_files', 'SELECT');

-- Dates with more than one run, and when these are to be merged: at once if there are many, else a day after the last came.
CREATE TABLE cold_dates (
  tenant_id text NOT NULL,
  date date NOT NULL,
  compact_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, date)
);
CREATE INDEX cold_dates_due ON cold_dates (compact_at);

-- Segments that can turn cold; those that have are the bulk of the table.
CREATE INDEX telemetry_segments_indexed ON telemetry_segments (segment_id) WHERE state = 'indexed';
